"""Programs that can be compiled and most likely don't mean what they say: each gives one coded warning."""

from __future__ import annotations

import linecache
from typing import ClassVar

import numpy as np
import pytest

from bb_edge import PeerId, install
from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector
from bb_edge.registry import Registry, UnregisteredConcreteError
from bb_edge.roles import Aggregator, Codec
from bb_edge.targets import InstallError
from bb_host import (
    MS,
    AggregatorSlot,
    BackendSlot,
    CodecSlot,
    Compiler,
    DataSourceSlot,
    Graph,
    IndexSlot,
    ModelSlot,
    Module,
    PeerSelectorSlot,
    S,
)
from bb_host.errors import RoundsError, StateNotSaved
from bb_host.ir.proto import to_bytes
from bb_host.learn import mlp, trainable
from tests.aids.refusals import quiet, refused, warned

PEERS = Compiler().bind_peer_selector("clients", PresenceSelector)


def unsummed() -> Compiler:
    """All bindings of `Rounds` but that of its aggregator."""
    model = PEERS.bind_model("model", GraphModel, trainable(mlp([4, 2])))
    return model.bind_data_source("shard", ArrayDataSource, {"batch_size": 8})


def federation() -> Compiler:
    """All bindings of `Rounds`."""
    return unsummed().bind_aggregator("agg", FedAvg)


class Rounds(Module):
    """A federation of one request per round; subclasses say what follows."""

    home = "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client", at="Server")
    model, agg = ModelSlot("model"), AggregatorSlot("agg", at="Server")
    shard = DataSourceSlot("shard", at="Client")
    durable = False

    def body(self, g: Graph) -> None:
        with g.rounds(3) as start:
            peers = self.clients.sample(g, n=2, after=start)
            params = self.model.params(g, after=start)
            r = g.request("ask", peers, params, deadline_ns=S, durable=self.durable)
            done = self.model.load_parameters(g, r.value)
            x, y = self.shard.next_batch(g, after=done)
            loss = self.model.evaluate(g, x, y)
            r.reply([self.model.params(g, after=loss), self.shard.num_samples(g)])
            weights, n = r.answer
            self.agg.contribute(g, weights, weight=n, peer=r.answer.sender, round=start.round)
            self.close(g, r)

    def close(self, g: Graph, r) -> None:
        new, total = self.agg.aggregate(g, after=r.closed)
        self.model.load_parameters(g, new)
        g.output("total", total)


class Base(Module):
    """A module with an input, so that the host can start it."""

    def body(self, g: Graph) -> None:
        x = g.input("x", "F32", (None, 4))
        g.output("y", x + 1.0)
        self.more(g, x)

    def more(self, g: Graph, x) -> None:
        pass


def test_the_programs_that_are_varied_here_give_no_warning():
    quiet(Rounds(), federation())
    quiet(Base())


# --- flows that nothing starts ----------------------------------------------------------------------------


def test_an_aggregate_that_does_not_wait_for_the_round():
    class Forgets(Rounds):
        def close(self, g, r):
            new, total = self.agg.aggregate(g)  # <-
            self.model.load_parameters(g, new)
            g.output("total", total)

    warned("never-started", "Aggregate", "'total'", "after=", program=Forgets(), compiler=federation())


def test_an_event_that_nothing_sets_off():
    class Counts(Rounds):
        def close(self, g, r):
            super().close(g, r)
            n = self.clients.current_view(g)  # <-
            g.app_emit("view", n)

    warned("never-started", "CurrentView", "AppEmit never runs", program=Counts(), compiler=federation())


def test_an_event_of_a_constant_beside_several_entries(module):
    def body(g):
        g.app_notify("a", g.pulse())
        g.app_emit("b", g.interval(S))
        g.app_emit("hello", 3.0)  # <-

    warned("never-started", "AppEmit reads constants alone", "2 entries", "after=", program=module(body))


def test_an_event_that_no_input_sets_off(module):
    def body(g):
        g.output("y", g.input("x", "F32", (4,)) + 1.0)
        me = g.own_peer()  # <-
        g.app_emit("me", me)

    warned("never-started", "OwnPeer", "AppEmit never runs", program=module(body))


def test_an_event_that_the_host_asks_for_beside_an_input(module):
    def body(g):
        g.output("y", g.input("x", "F32", (4,)) + 1.0)
        with g.on_invoke():
            g.app_emit("me", g.own_peer())

    quiet(module(body))


def test_a_flow_of_the_client_beside_its_request():
    class Prepares(Rounds):
        def close(self, g, r):
            super().close(g, r)
            x, _ = self.shard.next_batch(g)  # <-
            g.output("first", x)

    warned("never-started", "of Client", "'first'", program=Prepares(), compiler=federation())


def test_two_dead_flows_are_two_warnings_and_one_flow_is_one():
    class Twice(Rounds):
        def close(self, g, r):
            super().close(g, r)
            g.app_emit("a", self.clients.current_view(g))
            g.app_emit("b", self.agg.current_tensor(g))
            g.app_emit("c", self.agg.current_tensor(g, after=r.closed))

    found = federation().run(Twice()).warnings
    assert [w.code for w in found] == ["never-started", "never-started"]


def test_a_dead_flow_of_a_module_within():
    class Child(Module):
        clients = Rounds.clients

        def body(self, g):
            g.app_emit("view", self.clients.current_view(g))  # <-

    class Parent(Rounds):
        def close(self, g, r):
            super().close(g, r)
            Child().call().build(g)

    warned("never-started", "CurrentView", program=Parent(), compiler=federation())


def test_what_the_host_starts_is_said_with_on_invoke():
    class Shows(Rounds):
        def close(self, g, r):
            super().close(g, r)
            with g.on_invoke():
                g.app_emit("view", self.clients.current_view(g))

    quiet(Shows(), federation())


def test_on_invoke_reaches_into_modules():
    class Child(Module):
        clients = Rounds.clients

        def body(self, g):
            g.app_emit("view", self.clients.current_view(g))

    class Parent(Rounds):
        def close(self, g, r):
            super().close(g, r)
            with g.on_invoke():
                Child().call().build(g)

    quiet(Parent(), federation())


def test_partitions_without_entries_are_started_by_the_host():
    class Invoked(Module):
        clients = PeerSelectorSlot("clients")

        def body(self, g):
            g.output("view", self.clients.current_view(g))
            g.app_emit("constant", 3.0)

    quiet(Invoked(), PEERS)


def test_what_inputs_lead_to_is_started_by_the_host_beside_entries_too():
    class Both(Module):
        clients = PeerSelectorSlot("clients")

        def body(self, g):
            g.app_emit("tick", g.interval(S))
            g.output("y", g.input("x", "F32", (2,)) * 2.0)
            g.output("z", 2.0)  # comes with whatever starts the partition

    class Pulled(Both):
        def body(self, g):
            g.app_notify("view", self.clients.sample(g, n=3, after=g.pulse()))

    quiet(Pulled(), PEERS)

    class NoSlot(Both):
        clients = None

    quiet(NoSlot())


# --- results, bodies, slots -------------------------------------------------------------------------------


def test_a_result_that_nothing_reads():
    class Unread(Base):
        def more(self, g, x):
            z = x * 2.0
            g.onnx.relu(z)  # <-

    warned("unread-result", "Relu", program=Unread())


@pytest.mark.parametrize("what", ["search", "compress", "current_view", "equal", "pulse", "lookup"])
def test_results_of_other_ops_that_nothing_reads(what):
    class Unread(Base):
        codec, index, clients = CodecSlot("codec"), IndexSlot("index"), PeerSelectorSlot("clients")

        def more(self, g, x):
            self.codec.train_codebook(g, x)
            self.index.add(g, x)
            g.app_notify("up", self.clients.sample(g, n=1, after=x))
            t = g.gate(g.constant("t"), x)
            g.app_emit("t", t)
            if what == "search":
                self.index.search(g, x, k=3)  # <-
            elif what == "compress":
                self.codec.compress(g, x)  # <-
            elif what == "current_view":
                self.clients.current_view(g, after=x)  # <-
            elif what == "equal":
                g.onnx.equal(x, x)  # <-
            elif what == "pulse":
                g.pulse()  # <-
            else:
                g.address_book_lookup(g.input("peer", "PeerId"))  # <-

    compiler = PEERS.bind_codec("codec", "test.Codec").bind_index("index", "test.Index")
    found = [w for w in compiler.run(Unread()).warnings if w.code != "unknown-component"]
    (one,) = found
    assert one.code == "unread-result"
    line = linecache.getline(__file__, one.line)
    assert line.endswith("# <-\n") and what in line


def test_a_call_of_a_module_that_only_computes():
    class Child(Module):
        def body(self, g):
            g.output("y", g.input("x", "F32") * 2.0)

    class Parent(Base):
        def more(self, g, x):
            g.call(Child(), x=x)  # <-

    warned("unread-result", "Child", program=Parent())


def test_a_call_of_a_module_that_acts_is_read_by_nobody_and_right():
    class Child(Module):
        def body(self, g):
            y = g.input("x", "F32") * 2.0
            g.app_emit("doubled", y)
            g.output("y", y)

    class Parent(Base):
        def more(self, g, x):
            g.call(Child(), x=x)

    quiet(Parent())


def test_an_unread_result_in_a_branch():
    class Branches(Base):
        def more(self, g, x):
            def then(b):
                b.onnx.relu(x)  # <-
                return b.onnx.neg(x)

            z = g.onnx.if_(g.input("c", "BOOL", ()), then, lambda b: b.onnx.abs(x))
            g.output("z", z)

    warned("unread-result", "Relu", program=Branches())


def test_what_backward_needs_and_what_writes_may_go_unread():
    class Trains(Base):
        model = ModelSlot("model")

        def more(self, g, x):
            y = self.model.forward(g, x)
            dz = g.input("dz", "F32", (None, 2))
            self.model.step(g, after=self.model.backward(g, dz, after=y))

    quiet(Trains(), Compiler().bind_model("model", GraphModel, trainable(mlp([4, 2]))))


def test_a_forward_for_nothing():
    class Runs(Base):
        model = ModelSlot("model")

        def more(self, g, x):
            self.model.forward(g, x)  # <-

    bound = Compiler().bind_model("model", GraphModel, trainable(mlp([4, 2])))
    warned("unread-result", "Forward", program=Runs(), compiler=bound)


def test_an_empty_body():
    class Empty(Module):
        def body(self, g):  # <-
            pass

    warned("empty-body", "'Empty'", program=Empty())


def test_a_body_that_returns_its_value():
    class Returns(Module):
        def body(self, g):  # <-
            y = g.input("x", "F32", (4,)) * 2.0
            g.output("y", y)
            return y

    warned("body-returns-value", "g.output", program=Returns())


def test_a_bootstrap_that_returns_a_value():
    class Returns(Base):
        model = ModelSlot("model")

        def more(self, g, x):
            g.output("z", self.model.forward(g, x))

        def bootstrap(self, g):  # <-
            return self.model.load_parameters(g, np.zeros(10, np.float32))

    bound = Compiler().bind_model("model", GraphModel, trainable(mlp([4, 2])))
    warned("body-returns-value", "the bootstrap of 'Returns'", program=Returns(), compiler=bound)


def test_a_slot_that_no_op_uses():
    class Unused(Base):
        model = ModelSlot("model")  # <-

    warned("unused-slot", "'model'", program=Unused())


def test_a_concrete_slot_and_a_backend_that_no_op_uses():
    class Unused(Base):
        def __init__(self) -> None:
            self.fast = BackendSlot("fast")  # <-

    class Default(Base):
        backend = BackendSlot("backend")

    warned("unused-slot", "'fast'", program=Unused())
    quiet(Default())


def test_an_unused_slot_that_is_bound():
    class Unused(Base):
        model = ModelSlot("model")  # <-

    bound = Compiler().bind_model("model", GraphModel, trainable(mlp([4, 2])))
    found = bound.run(Unused()).warnings
    assert sorted(w.code for w in found) == ["unused-binding", "unused-slot"]


def test_a_binding_for_a_partition_that_does_not_use_the_slot():
    compiler = federation().bind_aggregator("agg", FedAvg, target="Client")  # <-
    warned("unused-binding", "'agg'", "'Client'", program=Rounds(), compiler=compiler)


def test_a_binding_that_others_replace_everywhere():
    compiler = PEERS.bind_model("model", GraphModel, trainable(mlp([4, 2])))
    compiler = compiler.bind_aggregator("agg", FedAvg)  # <-
    compiler = compiler.bind_data_source("shard", ArrayDataSource, {"batch_size": 8})
    compiler = compiler.bind_aggregator("agg", FedAvg, target="Server")
    warned("unused-binding", "'agg'", program=Rounds(), compiler=compiler)


class Configured(Base):
    agg = AggregatorSlot("agg", FedAvg, {"clip_norm": 1.0, "max_weight": 500.0})

    def body(self, g):
        g.output("mean", self.agg.current_tensor(g))


def test_a_binding_that_drops_keys_of_the_declaration():
    compiler = Compiler().bind_aggregator("agg", FedAvg, {"clip_norm": 2.0})  # <-
    warned(
        "binding-replaces",
        "slot 'agg' has a configuration at test_warnings.py:",
        "it drops max_weight of bb.FedAvg",
        program=Configured(),
        compiler=compiler,
    )


def test_a_binding_that_gives_each_key_of_the_declaration_is_no_reason_to_warn():
    compiler = Compiler().bind_aggregator("agg", FedAvg, {"clip_norm": 2.0, "max_weight": 9.0})
    assert not compiler.run(Configured()).warnings


# --- numbers ----------------------------------------------------------------------------------------------


def asking(deadline_ns: int, enough: int | None = None, n: int = 2, inner_ns: int = 0) -> Module:
    class Asks(Module):
        home = "Server"
        clients = PeerSelectorSlot("clients", peer_class="Client", at="Server")
        leaves = PeerSelectorSlot("leaves", peer_class="Leaf", at="Client")

        def __init__(self) -> None:
            if not inner_ns:
                self.leaves = None  # type: ignore[assignment]

        def body(self, g):
            peers = self.clients.sample(g, n=n, after=g.pulse())
            x = g.constant([1.0])
            r = g.request("ask", peers, x, deadline_ns=deadline_ns, enough=enough)  # <-
            y = r.value * 2.0
            if inner_ns:
                leaves = self.leaves.sample(g, n=3, after=y)
                q = g.request("leaf", leaves, y, deadline_ns=inner_ns)  # <-
                q.reply(q.value + 1.0)
                y = g.onnx.reduce_sum(q.responses, [0], keepdims=0)
            r.reply(y)
            g.output("sum", g.onnx.reduce_sum(r.responses, [0], keepdims=0))

    return Asks()


def test_more_answers_than_peers_are_enough():
    warned("enough-above-n", "3 answers", "2 peers", program=asking(S, enough=3), compiler=PEERS)
    quiet(asking(S, enough=2), PEERS)


@pytest.mark.parametrize("times", [0, 1])
def test_a_loop_of_no_iterations(times):
    class Loops(Module):
        def body(self, g):
            with g.loop(times, carry=g.input("x", "F32", (4,))) as step:  # <-
                step.next(step.carried * 2.0)
            g.output("y", step.result)

    if times:
        quiet(Loops())
    else:
        warned("empty-loop", "0 iterations", "1 or more", program=Loops())


@pytest.mark.parametrize(("outer", "inner"), [(1, 10**12), (10**5, 10**5)])
def test_a_loop_that_takes_for_ever(outer, inner):
    def loops(inner, stops):
        class Loops(Module):
            def body(self, g):
                x = g.input("x", "F32", (4,))
                with g.loop(outer, carry=x) as step:
                    with g.loop(inner, carry=step.carried) as within:  # <-
                        within.next(within.carried * 0.5)
                        if stops:
                            within.stop(g.onnx.reduce_max(within.carried, keepdims=False) < 0.1)
                    step.next(within.result)
                g.output("y", step.result)

        return Loops()

    warned("long-loop", f"{outer * inner:,} iterations", "step.stop(…)", program=loops(inner, False))
    quiet(loops(inner, True))
    quiet(loops(1000, False))


@pytest.mark.parametrize("deadline_ns", [10, 30, 999_999])
def test_a_deadline_in_the_wrong_unit(deadline_ns):
    warned("short-deadline", str(deadline_ns), "30 * S", program=asking(deadline_ns), compiler=PEERS)
    quiet(asking(MS), PEERS)


def test_a_send_with_a_deadline_in_the_wrong_unit():
    class Sends(Module):
        def body(self, g):
            got = g.net_out("out", g.input("to", "PeerIdVec"), g.input("x", "F32"), deadline_ns=5)  # <-
            g.output("y", got)

    warned("short-deadline", "deadline_ns=5", program=Sends())


@pytest.mark.parametrize("inner_ns", [2 * S, 3 * S])
def test_a_request_whose_deadline_the_outer_one_cuts(inner_ns):
    compiler = PEERS.bind_peer_selector("leaves", PresenceSelector)
    warned(
        "outer-deadline-first",
        "'leaf'",
        "'ask'",
        "2 s",
        program=asking(2 * S, inner_ns=inner_ns),
        compiler=compiler,
    )
    quiet(asking(2 * S, inner_ns=S), compiler)


def test_a_request_in_an_answer_is_made_for_nobodys_request():
    class Chains(Module):
        home = "Server"
        clients = PeerSelectorSlot("clients", peer_class="Client", at="Server")

        def body(self, g):
            r = g.request("a", self.clients.sample(g, n=2, after=g.pulse()), 1.0, deadline_ns=S)
            r.reply(r.value + 1.0)
            q = g.request("b", r.answer.sender, r.answer, deadline_ns=2 * S)
            q.reply(q.value + 1.0)
            g.output("y", q.answer)

    quiet(Chains(), PEERS)


@pytest.mark.parametrize("call", ["app_emit", "app_notify", "record", "incr_metric"])
def test_an_event_without_a_name(call):
    class Emits(Base):
        def more(self, g, x):
            getattr(g, call)("", x)  # <-

    warned("empty-name", program=Emits())


@pytest.mark.parametrize("call", ["interval", "after", "sleep", "pause"])
def test_a_time_in_the_wrong_unit(call):
    class Ticks(Module):
        def body(self, g):
            if call == "interval":
                g.app_emit("tick", g.interval(30))  # <-
            elif call == "pause":
                with g.rounds(3, pause_ns=5) as start:  # <-
                    g.app_emit("round", start.round)
            else:
                later = getattr(g, call)(g.pulse(), 10)  # <-
                g.app_notify("later", later)

    warned("short-period", "nanoseconds", program=Ticks())


# --- scopes -----------------------------------------------------------------------------------------------


def test_a_misspelt_scope_around_what_lives_elsewhere():
    class Misspelt(Rounds):
        def close(self, g, r):
            new, total = self.agg.aggregate(g, after=r.closed)
            with g.at("Clinet"):
                half = new * 0.5  # <-
                self.model.load_parameters(g, half)
            g.output("total", total)

    warned(
        "scope-places-nothing",
        "'Clinet'",
        "did you mean 'Client'?",
        program=Misspelt(),
        compiler=federation(),
    )


def test_a_scope_that_contradicts_its_data():
    class Contradicts(Rounds):
        def close(self, g, r):
            new, total = self.agg.aggregate(g, after=r.closed)
            with g.at("Client"):
                self.model.load_parameters(g, new)  # <-
            g.output("total", total)

    warned("scope-places-nothing", "'Client'", "send", program=Contradicts(), compiler=federation())


def test_a_scope_without_ops():
    class Nothing(Base):
        def more(self, g, x):
            with g.at("Client"):  # <-
                pass

    warned("scope-places-nothing", "'Client'", program=Nothing())


def test_scopes_that_place_something():
    class Scoped(Module):
        home = "Server"
        clients = PeerSelectorSlot("clients", peer_class="Client")

        def body(self, g):
            with g.at("Client"):
                x = g.input("x", "F32", (2,))
            with g.at("Server"):
                tick = g.interval(S)
            with g.at("Client"):
                y = x * 2.0
            g.output("y", y)
            got = g.net_out("tick", self.clients.sample(g, n=1, after=tick), 1.0)
            g.app_emit("tick", got)

    quiet(Scoped(), PEERS)


# --- components -------------------------------------------------------------------------------------------


class Halves(Codec):
    """A codec that keeps nothing."""

    TYPE_NAME: ClassVar[str] = "test_warnings.Halves"

    @classmethod
    def construct(cls, env):
        return cls()

    def compress(self, ctx, t):
        return t

    def decompress(self, ctx, code):
        return code


class Sums(Aggregator):
    """An aggregator that forgets its sum."""

    TYPE_NAME: ClassVar[str] = "test_warnings.Sums"

    @classmethod
    def construct(cls, env):
        return cls()

    def contribute(self, ctx, contribution, weight, peer, round, sent):
        return None

    def aggregate(self, ctx, stack, round):
        return stack, np.float32(0)

    def current_tensor(self, ctx, trigger):
        return np.zeros(0, np.float32)


class Keeps(Sums):
    """One that does not."""

    TYPE_NAME: ClassVar[str] = "test_warnings.Keeps"

    def serialize(self):
        return b"sum"

    def restore(self, state):
        pass


class Declared(Sums):
    """One whose author says that there is nothing to keep."""

    TYPE_NAME: ClassVar[str] = "test_warnings.Declared"
    stateless: ClassVar[bool | None] = True


def test_a_misspelt_type():
    compiler = unsummed().bind_aggregator("agg", "bb.FedAgv")  # <-
    warned(
        "unknown-component",
        "'bb.FedAgv'",
        "did you mean 'bb.FedAvg'?",
        "--load",
        program=Rounds(),
        compiler=compiler,
    )


def test_a_misspelt_type_in_the_slot():
    class Concrete(Module):
        codec = CodecSlot("codec", "acme.Halves")  # <-

        def body(self, g):
            x = g.input("x", "F32", (4,))
            g.output("y", self.codec.compress(g, x))

    warned("unknown-component", "'acme.Halves'", program=Concrete())


def test_a_class_that_is_not_registered_is_told_how():
    class Forgotten(FedAvg):
        TYPE_NAME: ClassVar[str] = "test_warnings.Forgotten"

    compiler = unsummed().bind_aggregator("agg", "test_warnings.Forgotten")  # <-
    how = "put @register (from bb_edge.extend) above class Forgotten (test_warnings.py:"
    warned("unknown-component", how, program=Rounds(), compiler=compiler)
    with pytest.raises(UnregisteredConcreteError) as caught:  # as a device that was given the file says it
        Registry().lookup(Forgotten.TYPE_NAME)
    assert caught.value.hint.startswith(how)


def test_a_component_that_forgets():
    compiler = unsummed().bind_aggregator("agg", Sums)  # <-
    warned("state-not-saved", "Sums", "serialize", "stateless", program=Rounds(), compiler=compiler)


class Durable(Rounds):
    """The same, in a program that promises to lose nothing."""

    durable = True


def test_a_component_that_forgets_in_a_durable_program_is_refused():
    compiler = unsummed().bind_aggregator("agg", Sums)  # <-
    with refused(StateNotSaved, "slot 'agg'", "Sums", "serialize", "durable", "stateless"):
        compiler.compile_program(Durable())
    quiet(Durable(), unsummed().bind_aggregator("agg", Keeps))
    quiet(Durable(), unsummed().bind_aggregator("agg", Declared))


def test_a_component_that_forgets_on_the_device_is_refused_where_the_program_is_durable():
    class Forgets(Sums):
        TYPE_NAME: ClassVar[str] = Keeps.TYPE_NAME

    class Stateful(Declared):
        TYPE_NAME: ClassVar[str] = Keeps.TYPE_NAME
        stateless: ClassVar[bool | None] = False

    class Says(Declared):
        TYPE_NAME: ClassVar[str] = Keeps.TYPE_NAME

    def node(program: Rounds, kind: type[Sums]):
        registry = Registry()
        registry.register(kind)
        data = to_bytes(unsummed().bind_aggregator("agg", Keeps).compile_program(program))
        return install(PeerId.from_name("s"), (), data, ["Server"], registry=registry, durable=True)

    for kind in (Forgets, Stateful):
        words = ("Server, slot 'agg'", kind.__name__, "serialize", "stateless")
        with refused(InstallError, *words, marked=False):
            node(Durable(), kind)
        node(Rounds(), kind)
    for kind in (Keeps, Says):
        node(Durable(), kind)


def test_components_that_keep_their_state_or_have_none():
    quiet(Rounds(), unsummed().bind_aggregator("agg", Keeps))
    quiet(Rounds(), unsummed().bind_aggregator("agg", Declared))

    class Encodes(Base):
        codec = CodecSlot("codec")

        def more(self, g, x):
            g.output("code", self.codec.compress(g, x))

    quiet(Encodes(), Compiler().bind_codec("codec", Halves))


def test_an_aggregator_that_is_only_read_forgets_nothing():
    class Reads(Base):
        agg = AggregatorSlot("agg")

        def more(self, g, x):
            g.output("now", self.agg.current_tensor(g, after=x))

    quiet(Reads(), Compiler().bind_aggregator("agg", Sums))


# --- what is refused already ------------------------------------------------------------------------------


def test_rounds_that_nothing_depends_on():
    class Idle(Base):
        def more(self, g, x):
            with g.rounds(3):  # <-
                g.app_emit("x", x)

    with refused(RoundsError):
        Compiler().run(Idle())
