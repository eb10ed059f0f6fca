"""Random programs over the whole catalog, each op with a plain model of what it must do.

An `Author` takes random steps. Every value that it makes comes with a function of one start's inputs (`of`),
every event that a program emits with what the host must see of it over all starts (`Wanted`). Nothing of the
runtime is used for that. Stateful ops are asked for what holds whatever the order in which executions meet.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from operator_models import ONNX

from bb_edge.components import FedAvg, FlatIndex, Float16Codec, GraphModel, PresenceSelector, ScalarQuantizer
from bb_host import (
    MS,
    AggregatorSlot,
    CodecSlot,
    DataSourceSlot,
    IndexSlot,
    ModelSlot,
    Module,
    PeerSelectorSlot,
    S,
)
from bb_host.learn import mlp, trainable

SHAPE = (2, 3)
DEVICES = {"Server": 1, "Client": 2, "Edge": 1}
STARTS = {"main": 3, "late": 3, "rounds": 3, "pulse": 1, "phase": 2, "bad": 2}
"""How often each entry is started; those of `main`, and those of `late`, at once."""

Env = Mapping[str, Any]
Array = np.ndarray


def f32(value: Any) -> Array:
    return np.asarray(value, np.float32)


@dataclass(frozen=True)
class Value:
    """A value of a program, F32 of `SHAPE`, and what it is for the inputs of one start."""

    out: Any
    of: Callable[[Env], Array]


@dataclass
class Place:
    """Where values may meet: executions of one class and entry, `each` per device and start."""

    scope: str
    entry: str
    each: int = 1
    values: list[Value] = field(default_factory=list)
    sender: Any = None
    child: bool = False

    @property
    def per_device(self) -> int:
        return STARTS[self.entry] * self.each

    @property
    def total(self) -> int:
        return self.per_device * DEVICES[self.scope]


@dataclass(frozen=True)
class Wanted:
    """What the host must see under a topic: a row per start, `times` each.

    With `count`, any so many of these rows; `summed`, one row (`times` each) over all starts (`env["all"]`).
    """

    entry: str
    row: Callable[[Env], tuple[Array, ...]]
    times: int = 1
    count: int = -1
    summed: bool = False
    close: float = 1e-4


class Delayed(Module):
    """A sub-module with a syscall that suspends."""

    def body(self, g: Any) -> None:
        x = g.input("x", np.float32, SHAPE)
        g.output("y", g.onnx.mul(x, 2.0, after=g.sleep(g.threshold(1, x), 3 * MS)))


class CatalogModule(Module):
    """`steps` random steps over `path`, an .npz file with `x` and `y`."""

    name, home = "Catalog", "Server"

    def __init__(self, seed: int, steps: int, path: str) -> None:
        super().__init__()
        self.seed = seed
        self.steps = steps
        self.path = path
        self.booted = ModelSlot("booted", GraphModel, linear(seed), at="Server")
        self.wanted: dict[str, Wanted] = {}
        self.counters: dict[tuple[str, str], int] = {}
        self.rings: dict[tuple[str, str], Wanted] = {}

    def bootstrap(self, g: Any) -> None:
        self.booted.load_parameters(g, g.constant(f32(np.arange(8))))

    def body(self, g: Any) -> None:
        self.wanted, self.counters, self.rings = {}, {}, {}
        author = Author(g, self)
        author.entries()
        for _ in range(self.steps):
            author.act()
        author.show()


def linear(seed: int) -> Any:
    """y = x·W + b with W [3, 2]; eight parameters."""
    return trainable(mlp([3, 2], seed), loss="mse", learning_rate=0.5)


class Author:
    """One random step after another; every step makes values or events, and says what they must be."""

    def __init__(self, g: Any, module: CatalogModule) -> None:
        self.g = g
        self.module = module
        self.rng = random.Random(module.seed)
        self.places: list[Place] = []
        self.number = 0
        self.step = "entry"
        self.wires = 0

    # --- small parts

    def t(self, value: Any) -> Any:
        """A trigger for when a value is there."""
        return self.g.threshold(1, value)

    def name(self, what: str) -> str:
        self.number += 1
        return f"{what}{self.number}"

    def pick(self, place: Place) -> Value:
        return self.rng.choice(place.values)

    def add(self, place: Place, out: Any, of: Callable[[Env], Array]) -> None:
        place.values.append(Value(out, of))

    def want(self, place: Place, row: Callable[[Env], tuple[Array, ...]], **more: Any) -> str:
        """A topic that each execution of the place emits once, with that row."""
        topic = self.name(f"{self.step}_topic")
        self.module.wanted[topic] = Wanted(place.entry, row, place.each * DEVICES[place.scope], **more)
        return topic

    def constant(self, shape: tuple[int, ...]) -> tuple[Any, Array]:
        value = f32([self.rng.uniform(-2, 2) for _ in range(int(np.prod(shape)))]).reshape(shape)
        return self.g.constant(value), value

    def peers(self, of: str, at: str, after: Any) -> Any:
        """All peers of a class, by one of the ops that find them."""
        slot = PeerSelectorSlot(self.name("peers"), PresenceSelector, peer_class=of, at=at)
        count = DEVICES[of]
        way = self.rng.randrange(3)
        if way == 0:
            everybody = 1 if len(self.module.wanted) % 2 else None  # a share of it, and no share, are alike
            return slot.sample(self.g, n=count, min=count, fraction=everybody, after=after)
        if way == 1:
            return slot.current_view(self.g, after=after)
        return slot.near_key(self.g, self.g.constant(self.name("key")), n=count, after=after)

    # --- entries

    def entries(self) -> None:
        g = self.g
        main = Place("Server", "main")
        for name in ("x", "y"):
            self.add(main, g.input(name, np.float32, SHAPE), lambda e, n=name: e[n])
        self.me = g.input("Server", "PeerIdVec")
        late = Place("Server", "late")
        self.add(late, g.input("z", np.float32, SHAPE), lambda e: e["z"])
        with g.rounds(pause_ns=S) as start:
            self.round = start.round
            start.stop(start.round >= STARTS["rounds"])
            g.app_notify("never", g.when(start.round < 1))
            rounds = Place("Server", "rounds")
            number = g.onnx.cast(start.round, to=1) + g.constant(np.zeros(SHAPE, np.float32))
            number = g.gate(number, g.when(start.round > 0))
            self.add(rounds, number, lambda e: np.full(SHAPE, e["round"], np.float32))
        c, value = self.constant(SHAPE)
        pulse = Place("Server", "pulse")
        self.add(pulse, g.gate(c, g.pulse()), lambda e: value)
        self.index(pulse)
        phase = Place("Server", "phase")
        self.add(phase, g.gate(c, g.lifecycle_phase(2)), lambda e: value)
        self.places += [main, main, main, late, rounds, pulse, phase]
        # One that fails, and one that hears of it.
        bad = g.input("bad", np.float32, (None,))
        g.app_notify("never", g.onnx.reshape(bad, g.constant(np.array([7]))))
        g.app_notify("heard", g.event_source(1))
        self.module.wanted["heard"] = Wanted("bad", lambda e: ())
        g.app_emit("ticks", g.interval(10 * S))
        # A gate that the host opens in an invoke of its own.
        g.app_emit("let", g.gate(g.input("held", np.float32, (1,)), g.input("open", "Trigger")))
        # What the bootstrap has loaded.
        params = self.module.booted.params(g, after=late.values[0].out)
        g.app_emit("booted", params)
        self.module.wanted["booted"] = Wanted("late", lambda e: (np.arange(8),))
        # The address book: told in one execution, asked in others.
        told, known = g.input("told", "PeerId"), g.input("known", "Multiaddress")
        g.address_book_insert(told, known)
        g.address_book_insert_many(g.input("told_many", "PeerId"), g.input("known_many", "AddressVec"))
        g.app_emit("addresses", g.address_book_lookup(g.input("who", "PeerId")))
        g.address_book_drop(g.input("forget", "PeerId"))

    # --- steps

    def act(self) -> None:
        place = self.rng.choice(self.places)
        here = [self.arithmetic, self.timing, self.host, self.control, self.call, self.bundle]
        here += [self.onnx, self.flow] * 2 + [self.role, self.state] * 3 + [self.numbers, self.neighbours]
        if self.wires < 6 and not place.child and place.each <= 2:
            here += [self.send, self.ask] * 2 if place.scope == "Server" else [self.send_on]
        step = self.rng.choice(here)
        self.step = step.__name__
        step(place)

    def arithmetic(self, place: Place) -> None:
        a, b = self.pick(place), self.pick(place)
        self.add(place, g_mean(self.g, a.out, b.out), lambda e: (a.of(e) + b.of(e)) * f32(0.5))

    def onnx(self, place: Place) -> None:
        for make, model in self.rng.sample(ONNX, 3):
            a, b = self.pick(place), self.pick(place)
            out = make(self.g, a.out, b.out)
            self.add(place, out, lambda e, a=a, b=b, model=model: f32(model(a.of(e), b.of(e))))

    def bundle(self, place: Place) -> None:
        a, b = self.pick(place), self.pick(place)
        first, second = self.g.unbundle(self.g.bundle([a.out, b.out]))
        self.add(place, first, a.of)
        self.add(place, second, b.of)

    def flow(self, place: Place) -> None:
        g, a, b = self.g, self.pick(place), self.pick(place)
        made = self.rng.choice([
            lambda: g.pass_through(a.out),
            lambda: g.tee(a.out, 2)[1],
            lambda: g.syscall.gate_many_dispatch(a.out, b.out, self.pick(place).out),
            lambda: g.gate(a.out, g.on_trigger(self.t(b.out))),
            lambda: g.pass_through(a.out, after=b.out),
            lambda: g.onnx.neg(-a.out, after=[b.out, self.pick(place).out]),
            lambda: g.any(a.out, g.gate(b.out, g.sleep(self.t(a.out), 2 * MS))),
            lambda: g.gate(a.out, g.clock(self.t(b.out))),
            lambda: g.gate(a.out, g.correlate_tag(self.t(b.out))),
            lambda: g.gate(a.out, g.syscall.mint_dispatch(self.t(b.out))),
            lambda: g.onnx.cast(g.rng_u64(self.t(a.out)), to=1) * 0.0 + a.out,
        ])  # fmt: skip
        self.add(place, made(), a.of)

    def numbers(self, place: Place) -> None:
        """Scalars, timestamps and tokens as tensors; a clock that measures a sleep."""
        g, a = self.g, self.pick(place)
        mean = g.as_scalar(g.onnx.cast(g.onnx.reduce_mean(a.out, keepdims=0), to=1))
        self.add(place, g.as_tensor(mean) + a.out, lambda e: a.of(e).mean() + a.of(e))
        since = g.clock(self.t(a.out))
        slept = g.elapsed(since, g.clock(g.sleep(self.t(a.out), 3 * MS)))
        token = g.as_tensor(g.correlate_tag(self.t(a.out)))
        enough = g.onnx.and_(slept >= 3 * MS, g.onnx.equal(token, token))
        self.add(place, g.onnx.where(enough, a.out, a.out * 0.0), a.of)

    def neighbours(self, place: Place) -> None:
        """The node enters itself into its address book and looks itself up."""
        g, a = self.g, self.pick(place)
        me = g.own_peer(after=a.out)
        listed = g.peer_list(me, g.peer_at(g.peer_list(me), -1))
        where = g.address_list(g.address_at(g.own_addresses(after=a.out), 0), g.address_of(me))
        entered = g.address_book_insert_many(me, where)
        found = g.address_book_lookup(me, after=entered)
        count = g.onnx.cast(g.peer_count(listed, after=found), to=1)
        self.add(place, a.out * count, lambda e: a.of(e) * 2)

    def timing(self, place: Place) -> None:
        g, a = self.g, self.pick(place)
        early, late = sorted(self.rng.sample(range(1, 40), 2))
        then, timeout = g.after(self.t(a.out), early * MS), g.sleep(self.t(a.out), late * MS)
        pair = [then, timeout]
        self.rng.shuffle(pair)
        won = g.deadline_match(*pair)
        g.app_notify(self.want(place, lambda e: ()), won)
        self.add(place, g.gate(a.out, won), a.of)

    def state(self, place: Place) -> None:
        g, a = self.g, self.pick(place)
        kind = self.rng.choice(["threshold", "limit", "hold", "queue"])
        if kind == "threshold":
            n = self.rng.randint(1, 4)
            topic = self.name(f"{self.step}_topic")
            g.app_notify(topic, g.threshold(n, a.out))
            count = place.per_device // n * DEVICES[place.scope]
            self.module.wanted[topic] = Wanted(place.entry, lambda e: (), place.total, count)
        elif kind == "limit":
            name = self.name("limit")
            held = g.sleep(g.limit_acquire(name, self.t(a.out), n=self.rng.randint(1, 2)), 5 * MS)
            if self.rng.random() < 0.7:
                g.limit_release(name, held)
            self.add(place, g.gate(a.out, held), a.of)
        elif place.scope == "Server" and place.entry == "main":
            self.meet_late(place, a, kind)

    def meet_late(self, place: Place, a: Value, kind: str) -> None:
        """What executions of `main` leave behind for those of `late`."""
        g = self.g
        late = self.places[3]
        topic, name = self.name(f"{self.step}_topic"), self.name(kind)
        if kind == "hold":
            g.hold_stash(name, a.out)
            g.app_emit(topic, g.hold_flush(name, self.t(late.values[0].out)))
            count = 1
        else:
            g.app_notify(self.want(place, lambda e: ()), g.serialize_enqueue(name, a.out))
            g.app_emit(topic, g.serialize_dequeue(name, self.t(late.values[0].out)))
            count = STARTS["late"]
        self.module.wanted[topic] = Wanted("main", lambda e: (a.of(e),), place.each, count)

    def host(self, place: Place) -> None:
        g, a = self.g, self.pick(place)
        way = self.rng.randrange(3)
        if way == 0:
            g.app_emit(self.want(place, lambda e: (a.of(e),)), a.out)
        elif way == 1:
            name, delta = self.name("metric"), self.rng.randint(1, 5)
            g.incr_metric(name, a.out, delta=delta)
            self.module.counters[place.scope, name] = delta * place.per_device
        else:
            name = self.name("ring")
            g.record(name, a.out)
            self.module.rings[place.scope, name] = Wanted(place.entry, lambda e: (a.of(e),), place.each)

    def control(self, place: Place) -> None:
        """If and Loop, with values of around them: a backend's, or the engine's, which hold a syscall."""
        g, a, b = self.g, self.pick(place), self.pick(place)
        engines = len(place.values) % 2 == 0
        if self.rng.random() < 0.5:
            high = g.onnx.reduce_mean(a.out, keepdims=0) > 0.25

            def then(h: Any) -> Any:
                found = h.onnx.relu(a.out)
                return (h.pass_through(found) if engines else found) + b.out

            found = g.onnx.if_(high, then, lambda h: a.out - b.out)

            def of(e: Env) -> Array:
                x, y = a.of(e), b.of(e)
                return np.maximum(x, 0) + y if x.mean() > 0.25 else x - y

        else:
            trips = self.rng.randint(0, 3)
            if engines:
                with g.loop(trips, carry=a.out) as step:
                    later = g.pass_through(step.carried, after=g.sleep(self.t(step.carried), 1 * MS))
                    step.next(later * 0.5 + b.out + g.onnx.cast(step.index, to=1))
                found = step.result
            else:
                found = g.onnx.loop(
                    trips, None, a.out, body=lambda h, i, c, v: (c, v * 0.5 + b.out + h.onnx.cast(i, to=1))
                )

            def of(e: Env) -> Array:
                v = a.of(e)
                for i in range(trips):
                    v = v * f32(0.5) + b.of(e) + f32(i)
                return v

        self.add(place, found, of)

    def call(self, place: Place) -> None:
        a = self.pick(place)
        self.add(place, self.g.call(Delayed(), x=a.out)["y"], lambda e: a.of(e) * 2)

    # --- between devices

    def send(self, place: Place) -> None:
        self.wires += 1
        g, a, b = self.g, self.pick(place), self.pick(place)
        to = self.rng.choice(["Client", "Edge", "Server"])
        if to == "Server" and place is not self.places[0]:
            return
        # No selector finds its own node where that asks for its own class: it is named.
        peers = self.me if to == "Server" else self.peers(to, "Server", a.out)
        p, q = g.net_out(self.name("port"), peers, [a.out, b.out])
        sender = g.drafts[-1].outputs[-1]
        self.places.append(Place(to, place.entry, place.each, [Value(p, a.of), Value(q, b.of)], sender))

    def send_on(self, place: Place) -> None:
        """Back to who has sent it; all devices of the class do."""
        if place.sender is None:
            return
        self.wires += 1
        a = self.pick(place)
        p = self.g.net_out(self.name("port"), place.sender, a.out)
        each = place.each * DEVICES[place.scope]
        self.places.append(Place("Server", place.entry, each, [Value(p, a.of)]))

    def ask(self, place: Place) -> None:
        """A request to a cohort; sometimes one within, and steps on both sides."""
        self.wires += 1
        g, a = self.g, self.pick(place)
        to = self.rng.choice(["Client", "Client", "Edge"])
        r = g.request(self.name("port"), self.peers(to, "Server", a.out), a.out, deadline_ns=60 * S)
        there = Place(to, place.entry, place.each, [Value(r.value, a.of)])
        for step in self.rng.choices(
            [self.onnx, self.flow, self.timing, self.role, self.control, self.call], k=2
        ):
            step(there)
        if to == "Client" and self.rng.random() < 0.5:
            self.ask_within(there)
        b = there.values[-1]
        r.reply(b.out)
        count = DEVICES[to]
        if self.rng.random() < 0.5:
            each = Place("Server", place.entry, place.each * count, [Value(r.answer, b.of)], child=True)
            self.add(each, g_mean(g, r.answer, a.out), lambda e: (b.of(e) + a.of(e)) * f32(0.5))
            self.places.append(each)
            self.average(each, r.answer.sender)
        else:
            out = g.onnx.reduce_sum(r.responses, [0], keepdims=0)
            self.add(place, out, lambda e: b.of(e) * f32(count))
        g.app_notify(self.want(place, lambda e: ()), r.closed)
        nobody = g.onnx.reduce_sum(g.onnx.cast(r.missing_reasons, to=1), [0], keepdims=0)
        self.add(place, a.out + nobody, a.of)

    def ask_within(self, there: Place) -> None:
        g, a = self.g, self.pick(there)
        r = g.request(self.name("port"), self.peers("Edge", "Client", a.out), a.out, deadline_ns=30 * S)
        edge = Place("Edge", there.entry, there.each * DEVICES["Client"], [Value(r.value, a.of)])
        self.onnx(edge)
        b = edge.values[-1]
        r.reply(b.out)
        self.add(there, g.onnx.reduce_max(r.responses, [0], keepdims=0), b.of)

    # --- components

    def role(self, place: Place) -> None:
        self.rng.choice([self.model, self.average, self.codec, self.data, self.index])(place)

    def model(self, place: Place) -> None:
        """Own parameters, a step of learning, and what comes out: no other execution's in between."""
        g, a, b = self.g, self.pick(place), self.pick(place)
        net = ModelSlot(self.name("net"), GraphModel, linear(1), at=place.scope)
        (tail, tail_v), (delta, delta_v), (target, target_v) = map(self.constant, ((2,), (8,), (2, 2)))
        # Not before all is there: an execution that only waits for a permit gives its claims up meanwhile.
        given = g.onnx.concat([g.onnx.reshape(a.out, [6]), tail], axis=0)
        loaded = net.load_parameters(g, given, after=b.out)
        # A timer between, in which others would come in if they could.
        x = g.gate(b.out, g.sleep(self.t(loaded), 2 * MS))
        y = net.forward(g, x)
        dx = net.backward(g, y * 0.5, input_grad=True)
        again = net.forward(g, x, key=7, after=dx)
        both = net.backward(g, y * 0.25, after=net.backward(g, again * 0.25, key=7))
        learned = net.step(g, net.gradient(g, after=both))
        told = net.set_round(g, 2, after=learned)
        fitted = net.step(g, after=net.train(g, x, target, after=told))
        more = net.step(g, delta, after=fitted)
        done = net.apply_delta(g, delta, after=more)
        params = net.params(g, after=done)
        loss = net.evaluate(g, b.out, target, after=done)

        def learn(e: Env) -> tuple[Array, Array, Array]:
            p, x = np.concatenate([a.of(e).reshape(6), tail_v]), b.of(e)
            d = x @ p[:6].reshape(3, 2) + p[6:]
            dx = d @ p[:6].reshape(3, 2).T * 0.5
            p = p - 0.5 * np.concatenate([(x.T @ d).reshape(6), d.sum(0)])
            d = ((x @ p[:6].reshape(3, 2) + p[6:]) - target_v) * 0.5
            p = p - 0.5 * np.concatenate([(x.T @ d).reshape(6), d.sum(0)]) - 0.5 * delta_v + delta_v
            return f32(p), f32((((x @ p[:6].reshape(3, 2) + p[6:]) - target_v) ** 2).mean()), f32(dx)

        g.app_emit(self.want(place, learn, close=1e-2), g.bundle([params, loss, dx]))
        self.add(
            place,
            g.onnx.tanh(g.onnx.reshape(params[0:6], [2, 3])),
            lambda e: np.tanh(learn(e)[0][:6]).reshape(2, 3),
        )

    def average(self, place: Place, sender: Any = None) -> None:
        """The mean over all executions of the place, once all have contributed; and one of rows."""
        g, a = self.g, self.pick(place)
        if self.rng.random() < 0.3 and not place.child:
            rows = AggregatorSlot(self.name("rows"), FedAvg, at=place.scope)
            mean, total = rows.aggregate(g, a.out)
            g.app_emit(self.want(place, lambda e: (a.of(e).mean(0), f32(2))), g.bundle([mean, total]))
            return
        agg = AggregatorSlot(self.name("agg"), FedAvg, at=place.scope)
        weight = g.onnx.reduce_max(g.onnx.abs(a.out), keepdims=0) + 1.0
        # By (peer, round), first wins: the same contribution twice counts once.
        once = {} if sender is None or place.entry != "rounds" else {"peer": sender, "round": self.round}
        done = agg.contribute(g, a.out, weight, **once)
        if once:
            agg.contribute(g, a.out, weight, **once, after=done)
        topic = self.name(f"{self.step}_topic")
        trigger = g.threshold(place.per_device, done)
        mean, total = agg.aggregate(g, after=trigger)
        g.app_emit(topic, g.bundle([mean, total, agg.current_tensor(g, after=mean)]))

        def row(e: Env) -> tuple[Array, ...]:
            weights = [np.abs(a.of(env)).max() + 1 for env in e["all"]]
            mean = sum(w * a.of(env) for w, env in zip(weights, e["all"], strict=True)) / sum(weights)
            return f32(mean), f32(sum(weights) * place.each), f32(mean)

        self.module.wanted[topic] = Wanted(place.entry, row, DEVICES[place.scope], summed=True)

    def codec(self, place: Place) -> None:
        g, a = self.g, self.pick(place)
        if self.rng.random() < 0.5:
            half = CodecSlot(self.name("half"), Float16Codec, at=place.scope)
            out = half.decompress(g, half.compress(g, a.out))
            g.app_emit(self.want(place, lambda e: (a.of(e),), close=2e-3), out)
            return
        levels = CodecSlot(self.name("levels"), ScalarQuantizer, at=place.scope)
        sample = g.constant(f32([-8.0, 8.0]))
        trained = levels.train_codebook(g, g.pass_through(sample, after=a.out))
        tanh = g.onnx.tanh(a.out)
        out = levels.decompress(g, levels.compress(g, tanh, after=trained))
        g.app_emit(self.want(place, lambda e: (np.tanh(a.of(e)),), close=0.04), out)

    def data(self, place: Place) -> None:
        g, a = self.g, self.pick(place)
        config = {"path": self.module.path, "batch_size": 2, "shuffle": False}
        shard = DataSourceSlot(self.name("shard"), "bb.ArrayDataSource", config, at=place.scope)
        start = shard.reset(g, shard.on_data_loaded(g, after=a.out))
        x, labels = shard.next_batch(g, after=g.after(start, 2 * MS))
        n = shard.num_samples(g, after=x)
        with np.load(self.module.path) as file:
            data = dict(file)
        g.app_emit(self.want(place, lambda e: (data["y"][:2], f32(len(data["x"])))), g.bundle([labels, n]))
        self.add(place, x + a.out, lambda e: data["x"][:2] + a.of(e))

    def index(self, place: Place) -> None:
        """Rows that one execution adds: what others have added lies far away."""
        if place.entry != "pulse" or place.per_device != 1:
            return self.codec(place)
        g, a = self.g, self.pick(place)
        index = IndexSlot(self.name("index"), FlatIndex, at=place.scope)
        added = index.add(g, a.out)
        ids, distances = index.search(g, a.out, k=1, after=added)
        gone = index.remove(g, g.gate(g.constant(np.array([0])), ids))
        left, _ = index.search(g, a.out, k=2, after=gone)
        g.app_emit(
            self.want(place, lambda e: (np.zeros((2, 1)), np.array([[1, -1], [1, -1]])), close=2e-2),
            g.bundle([distances, left]),
        )
        return None

    def show(self) -> None:
        for place in self.places:
            shown = place.values[-6:]
            topic = self.want(place, lambda e, shown=shown: tuple(v.of(e) for v in shown))
            self.g.app_emit(topic, self.g.bundle([v.out for v in shown]))


def g_mean(g: Any, a: Any, b: Any) -> Any:
    return (a + b) * 0.5
