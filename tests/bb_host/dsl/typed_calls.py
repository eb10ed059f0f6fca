"""What a type checker says of calls that are made of tables. mypy reads it; nothing runs it.

A line that ends in `# error: code` is refused, and no other one is.
"""

from __future__ import annotations

from bb_host import AggregatorSlot, BackendSlot, Graph, IndexSlot, ModelSlot, Module, Output


class Typed(Module):
    model = ModelSlot("model")
    index = IndexSlot("index")
    aggregator = AggregatorSlot("aggregator")
    fast = BackendSlot("fast")

    def body(self, g: Graph) -> None:
        x = g.input("x", "F32", (4,))
        # what the tables have
        y: Output = self.model.forward(g, x, after=g.pulse())
        self.model.step(g)
        ids, distances = self.index.search(g, y, k=3)
        total, weight = self.aggregator.aggregate(g, after=ids)
        stashed = g.hold_stash("kept", distances)
        g.app_emit("sum", g.onnx.softmax(total, axis=0), after=stashed)
        g.app_emit("best", g.onnx.arg_max(weight + 1, axis=0, keepdims=0))
        g.incr_metric("app.done", g.after(g.pulse(), 10))
        parts = g.onnx.split(x, num_outputs=2)
        pieces = g.tee(parts[0], 3)
        g.output("y", self.fast.onnx(g).relu(pieces[0]))
        # what they do not have
        self.model.foward(g, x)  # error: attr-defined
        self.model.forward(g)  # error: call-arg
        self.model.forward(g, "x")  # error: arg-type
        self.index.search(g, y)  # error: call-arg
        self.index.search(g, y, k="3")  # error: arg-type
        g.app_emit("sum")  # error: call-arg
        g.app_emit(1, x)  # error: arg-type
        g.app_emmit("sum", x)  # error: attr-defined
        g.interval(5, after=x)  # error: call-arg
        g.onnx.softmax(x, axes=0)  # error: call-arg
        g.onnx.softmaxx(x)  # error: attr-defined
        g.onnx.arg_max(x, axis="0")  # error: arg-type
        done: Output = g.hold_stash("kept", x)  # error: assignment
        del done
