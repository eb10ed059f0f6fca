"""Models as a device constructs them, from what a trainable model brings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from typing import Any

from bb_edge.backends.numpy_backend import NumPyBackend
from bb_edge.components.graph_model import GraphModel
from bb_edge.roles.component import ComponentEnv
from bb_host.ir.construction import graphs_for
from bb_host.ir.program import FunctionFacts, Subgraph
from bb_host.ir.proto import function_to_proto


def component(
    model: Any,
    slot: str = "model",
    config: Mapping[str, object] | None = None,
    backend: NumPyBackend | None = None,
    ops: Collection[str] = (),
) -> GraphModel:
    """The component that a device makes of a construction, with the graphs that these ops need from there."""
    construction = model.construct(slot)
    state = construction.attribute
    assert isinstance(state, Subgraph)
    functions = graphs_for(slot, model, frozenset(ops)) or construction.functions
    graphs = {f.name: function_to_proto(f) for f in functions}
    env = ComponentEnv(
        slot,
        config={**{key: json.loads(text) for key, text in state.config.items()}, **(config or {})},
        tensors=state.initializers,
        graph=lambda suffix: graphs.get(f"{slot}.{suffix}"),
        backend=backend or NumPyBackend(),
    )
    return GraphModel.construct(env)


def chunked(model: Any, chunk: int) -> Any:
    """The model with a fit graph that takes `chunk` rows at a time."""

    class Cut:
        def construct(self, slot: str) -> Any:
            made = model.construct(slot)
            functions = tuple(
                dataclasses.replace(f, facts=f.facts | FunctionFacts(chunk=chunk))
                if f.name.endswith(".fit")
                else f
                for f in made.functions
            )
            return dataclasses.replace(made, functions=functions)

    return Cut()
