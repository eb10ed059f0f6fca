"""What a broker lets a node do, asked of real mosquittos with rules of several kinds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bb_edge.ir.ids import PeerId
from bb_edge.transport.company import company
from bb_edge.transport.mqtt import Broker
from bb_edge.transport.rights import UNUSED_CLASS, Rights, rights
from bb_edge.transport.visitor import VisitError

SHIPPED = Path(__file__).parents[3] / "firmware_shims" / "bb_shims" / "files" / "broker" / "bb.acl"
KITCHEN, SERVER = PeerId.from_name("kitchen"), PeerId.from_name("server")
EVERYTHING = (
    "send envelopes as another peer",
    f"say that it is a {UNUSED_CLASS}",
    "say that it is a Server",
    "say that another peer is a Client",
    f"say that another peer is a {UNUSED_CLASS}",
    "say that another peer is a Server",
    "read the inboxes of others",
)
pytestmark = pytest.mark.broker
Ask = Callable[..., Rights]


@pytest.fixture
def ask(start_broker, tmp_path) -> Ask:
    """`ask(rules, peer=KITCHEN, classes=…, others=…)`: at a broker with these access rules, or none."""

    def asked(
        rules: str, peer: PeerId = KITCHEN, own: str = "Client", other: str = "Server", version: str = "auto"
    ) -> Rights:
        path = tmp_path / "rules"
        path.write_text(rules)
        path.chmod(0o644)
        broker = start_broker("mosquitto", config=[f"acl_file {path}"] if rules else [])
        at = Broker.from_url(f"mqtt://{peer}@{broker.host}:{broker.port}")
        return rights(at, peer, "home", [own], [other], version)

    return asked


@pytest.mark.parametrize(
    ("peer", "own", "other"), [(KITCHEN, "Client", "Server"), (SERVER, "Server", "Client")]
)
def test_the_rules_that_are_shipped_let_a_peer_be_itself_and_nothing_else(
    ask: Ask, peer: PeerId, own: str, other: str
) -> None:
    found = ask(SHIPPED.read_text(), peer, own, other)
    assert (found.lacking, found.hampered, found.excess) == ((), (), ())
    assert found.unheard == (own,), "who is of a class calls no roll of it"
    assert f"say that it is a {other}" in found.kept and "read the inboxes of others" in found.kept
    assert found.any_rules and found.told


def test_a_broker_without_rules_is_told_from_one_with_some(ask: Ask) -> None:
    found = ask("")
    assert not found.any_rules and not found.lacking
    assert set(found.excess) == set(EVERYTHING)


def test_a_pattern_that_opens_every_class_is_found(ask: Ask) -> None:
    found = ask(SHIPPED.read_text() + "pattern write bb/+/presence/+/%u\n")
    assert set(found.excess) == {f"say that it is a {UNUSED_CLASS}", "say that it is a Server"}


def test_rules_that_let_a_peer_read_and_write_for_others_are_found(ask: Ask) -> None:
    more = f"user {KITCHEN}\ntopic read bb/home/+/from/+\ntopic write bb/home/presence/Client/+\n"
    found = ask(SHIPPED.read_text() + more)
    assert set(found.excess) == {"read the inboxes of others", "say that another peer is a Client"}


def test_what_a_node_needs_and_may_not_is_named(ask: Ask) -> None:
    """It is told to be a server, and the rules know it as a client; nor do they let it read anything."""
    rules = SHIPPED.read_text().replace("pattern read bb/home/%u/from/+\n", "")
    found = ask(rules, KITCHEN, "Server", "Client")
    assert found.lacking == ("say that it is a Server", "read its inbox")
    assert found.hampered == ("call the roll of a Client", "hear when the roll of a Server is called")
    assert found.rules == (
        f"user {KITCHEN}: topic write bb/home/presence/Server/{KITCHEN}",
        "pattern read bb/home/%u/from/+",
        f"user {KITCHEN}: topic write bb/home/rollcall/Client",
        f"user {KITCHEN}: topic read bb/home/rollcall/Server",
    )


@pytest.mark.parametrize(
    ("rule", "lacks", "hampered"),
    [
        ("pattern read bb/home/%u/chunk/+", ("read large envelopes that come in chunks",), ()),
        ("pattern read bb/home/presence/+/%u", (), ("hear its own presence",)),
        ("topic write bb/home/rollcall/Server", (), ("call the roll of a Server",)),
    ],
)
def test_each_rule_that_is_taken_out_is_named(
    ask: Ask, rule: str, lacks: tuple[str, ...], hampered: tuple[str, ...]
) -> None:
    text = SHIPPED.read_text()
    assert rule in text
    found = ask(text.replace(f"{rule}\n", ""))
    assert (found.lacking, found.hampered) == (lacks, hampered)
    assert [told.endswith(rule) for told in found.rules] == [True]


def test_over_3_1_1_nobody_is_told_what_is_refused(ask: Ask) -> None:
    found = ask(SHIPPED.read_text(), version="3.1.1")
    assert not found.told and (found.lacking, found.excess, found.kept) == ((), (), ())
    assert ask("topic read elsewhere\n", version="3.1.1").lacking == (
        "read its inbox",
        "read large envelopes that come in chunks",
    )


def test_a_broker_that_is_not_there_is_named() -> None:
    with pytest.raises(VisitError, match=r"not reachable.*nothing listens at 127\.0\.0\.1, port 1: does"):
        rights(Broker.from_url("mqtt://127.0.0.1:1"), KITCHEN, "home", ["Client"])


def test_nodes_that_run_take_nothing_from_it(mosquitto_broker, loop, doors, url) -> None:
    """At a broker that grants everything: the node of that name, and one that hears both classes."""
    one, other = doors("kitchen", epoch=7), doors("hall")
    other.hears = ("Client", "Server")
    transports = [loop.join(node, url(mosquitto_broker), federation="home") for node in (one, other)]
    loop.until(lambda: other.presence.get(KITCHEN) == (True, 7) and other.peer_id in one.presence)
    broker = Broker.from_url(url(mosquitto_broker))
    found: list[Rights] = []
    asking = threading.Thread(target=lambda: found.append(rights(broker, KITCHEN, "home", ["Client"])))
    asking.start()
    loop.until(lambda: not asking.is_alive())
    asking.join()
    assert not found[0].any_rules
    for transport in transports:
        assert transport.counters["twins"] == transport.counters["malformed"] == 0
        assert transport.counters["connects"] == 1


def test_who_is_there_is_told_by_class_and_by_the_name(mosquitto_broker, loop, doors, url) -> None:
    broker = Broker.from_url(url(mosquitto_broker))
    found = company(broker, KITCHEN, "home", ["Server"])
    assert (found.own, dict(found.up), dict(found.elsewhere)) == (None, {"Server": 0}, {})
    server, kitchen = doors("server"), doors("kitchen")
    server.classes = ("Server",)
    transports = [loop.join(node, url(mosquitto_broker), federation="home") for node in (server, kitchen)]
    loop.until(lambda: all(transport.counters["connects"] == 1 for transport in transports))
    loop.until(lambda: company(broker, KITCHEN, "home", ["Server"]).up["Server"] == 1, 5)
    found = company(broker, KITCHEN, "home", ["Server"])
    assert found.own is not None and found.own.up and not found.broke_off
    assert company(broker, KITCHEN, "hone", ["Server"]).elsewhere == {"Server": ("home",)}
    for transport in transports:
        transport.stop()
    loop.transports.clear()
    found = company(broker, KITCHEN, "home", ["Server"])
    assert dict(found.down) == {"Server": 1}
    assert found.own is not None and not found.own.up and not found.broke_off, "it said goodbye"


def test_where_many_are_told_of_there_may_be_more(mosquitto_broker, loop, doors, url, monkeypatch) -> None:
    """mosquitto drops what its queue does not hold of what is retained, and says so to nobody."""
    broker = Broker.from_url(url(mosquitto_broker))
    transports = [loop.join(doors(f"c{n}"), url(mosquitto_broker), federation="home") for n in range(3)]
    loop.until(lambda: all(transport.counters["presences"] >= 3 for transport in transports))
    loop.until(lambda: company(broker, KITCHEN, "home", ["Client"]).up["Client"] == 3, 5)
    assert not company(broker, KITCHEN, "home", ["Client"]).many
    monkeypatch.setattr("bb_edge.transport.company.MANY", 3)
    found = company(broker, KITCHEN, "home", ["Client"])
    assert found.many and dict(found.up) == {"Client": 3}
