"""The digits' federation under the rules that `bb-host acl` writes, with passwords and certificates."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from abused.digits import HONEST, Digits
from brokers import free_port, mosquitto
from certificates import OPENSSL, Authority

from bb_edge.ir.ids import PeerId
from bb_edge.transport.broker import Broker
from bb_edge.transport.rights import FAILURE, rights
from bb_edge.transport.rollcall import encode_call
from bb_edge.transport.topics import Topics
from bb_edge.transport.visitor import visit
from bb_host.build import compile_edge
from bb_host.cli import main
from federated_digits.federation import program

PASSWD = shutil.which("mosquitto_passwd")
pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("mosquitto") is None or PASSWD is None, reason="needs mosquitto"),
    pytest.mark.skipif(OPENSSL is None, reason="no openssl on this machine"),
]
ROUNDS = 3
NAMES = ("server", *(f"honest-{number}" for number in range(HONEST)))
CERTIFIED = NAMES[-2:]
"""They show certificates, the others passwords."""


def id_of_name(name: str) -> str:
    return str(PeerId.from_name(name))


def test_a_federation_runs_and_nobody_in_it_can_be_somebody_else(tmp_path: Path) -> None:
    compile_edge(*program("softmax", 3, rounds=ROUNDS, clients=HONEST, at_least=HONEST), tmp_path)
    (tmp_path / "peers.txt").write_text(
        "".join(f"{name} {'Server' if name == 'server' else 'Client'}\n" for name in NAMES)
    )
    artifacts = map(str, tmp_path.glob("*.edge.onnx"))
    peers, rules, passwords = (tmp_path / name for name in ("peers.txt", "bb.acl", "passwords"))
    words = ["acl", *artifacts, "--federation", "home", "--peers", str(peers), "-o", str(rules)]
    assert main(words) == 0
    passwords.touch(0o600)
    for name in set(NAMES) - set(CERTIFIED):
        login = [id_of_name(name), f"secret of {name}"]
        subprocess.run([str(PASSWD), "-b", str(passwords), *login], check=True, capture_output=True)
    (tmp_path / "certificates").mkdir()
    certificates = Authority(tmp_path / "certificates")
    authority, (certificate, key), secure = certificates("ca")[0], certificates("broker"), free_port()
    lines = [
        *("allow_anonymous false", f"password_file {passwords}", f"acl_file {rules}"),
        *(f"listener {secure} 127.0.0.1", f"cafile {authority}", f"certfile {certificate}", f"keyfile {key}"),
        *("require_certificate true", "use_identity_as_username true"),
    ]
    digits = Digits(tmp_path, mosquitto(tmp_path, lines), "home")

    def login(name: str) -> tuple[str, ...]:
        """The words of a command line with which a node logs in."""
        if name not in CERTIFIED:
            password = f"secret%20of%20{name}"
            return ("--broker", f"mqtt://{id_of_name(name)}:{password}@127.0.0.1:{digits.broker.port}")
        files = certificates(id_of_name(name))
        named = zip(("--ca", "--cert", "--key"), (authority, *files), strict=True)
        return ("--broker", f"mqtts://127.0.0.1:{secure}", *(str(word) for pair in named for word in pair))

    def broker_of(name: str) -> Broker:
        _, url, *files = login(name)
        return Broker.from_url(
            url, **dict(zip(("ca_file", "cert_file", "key_file"), files[1::2], strict=False))
        )

    try:
        for number in range(HONEST):
            digits.honest(number, *login(f"honest-{number}"))
        digits.serve(*login("server"))
        found = digits.done()
        assert len(found.accuracy) == ROUNDS and not any(found.missing), found
        assert not [line for name in NAMES for line in found.said(name, "refused")]
        for name in ("server", NAMES[1], CERTIFIED[0]):
            own, other = ("Server", "Client") if name == "server" else ("Client", "Server")
            asked = rights(broker_of(name), PeerId.from_name(name), "home", [own], [other])
            assert (asked.lacking, asked.excess) == ((), ()), name
            topics = Topics("home", PeerId.from_name(name))
            with visit(broker_of(name)) as visitor:
                calls = [visitor.publish(topics.roll_call(called), encode_call(0)) for called in (other, own)]
                assert visitor.until(lambda calls=calls: all(map(visitor.reason_of, calls)))
                refused = [visitor.reason_of(mid).value >= FAILURE for mid in calls]
            assert refused == [False, True], "a peer calls the roll of those that it hears, and no other"
    finally:
        digits.close()
