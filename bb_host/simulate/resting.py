"""What becomes of a node's large memory between its turns, and of the bodies that it has sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.transport.in_process import Arrival, Presence
from bb_host.simulate import aside
from bb_host.simulate.aside import Aside
from bb_host.simulate.lying import Lying, OpenFiles

if TYPE_CHECKING:
    from bb_edge.ir.ids import PeerId
    from bb_edge.ir.tensors import Array
    from bb_edge.node import Node
    from bb_edge.roles.contracts import Model
    from bb_edge.wire.bodies import Body


class Resting:
    """The nodes of one worker that sleep between turns: what they hold aside, and what they hand on."""

    def __init__(self, path: Path, shares: bool) -> None:
        """What lies aside is in the file `path`; with `shares` the other workers can read it."""
        self._aside = Aside(path)
        self._shares = shares
        self._files = OpenFiles()
        self._nodes: dict[PeerId, tuple[Node, Sequence[Model], Sequence[Array]]] = {}
        self._placing: list[Array] | None = None  # of the node that is being made
        self._stay_bytes = 0  # of parameters that stay in memory: those of the first nodes
        # What others read of this file: since the last step, and since the one before.
        self._sent: list[Body] = []
        self._sent_before: list[Body] = []

    # --- a node that is being made --------------------------------------------------------------------

    @contextlib.contextmanager
    def placing(self, sleeps: bool) -> Iterator[list[Array]]:
        """What is placed in the block is in the list, if the node that is made there sleeps."""
        placed: list[Array] = []
        self._placing = placed if sleeps else None
        try:
            yield placed
        finally:
            self._placing = None

    def room(self, size: int) -> Array:
        """Returns memory for so many parameters, 1-D f32."""
        found = self._place(4 * size)
        return np.empty(size, np.float32) if found is None else found.view(np.float32)

    def _place(self, nbytes: int) -> Array | None:
        if self._placing is None:
            return None
        if self._stay_bytes + nbytes <= aside.IN_MEMORY:
            self._stay_bytes += nbytes
            return None
        found = self._aside.array(nbytes)
        if found is not None:
            self._placing.append(found)
        return found

    # --- turns ----------------------------------------------------------------------------------------

    def add(self, node: Node, models: Sequence[Model], placed: Sequence[Array]) -> None:
        """A node that sleeps has its models, and what was placed for it."""
        self._nodes[node.peer_id] = node, models, placed
        self.rest(node.peer_id)

    def rest(self, peer: PeerId) -> None:
        """A node has had its turn: if it sleeps, it gives memory back until the next one."""
        found = self._nodes.get(peer)
        if found is None:
            return
        node, models, placed = found
        for model in models:
            model.release()
        node.lay_aside(self._aside.keep)
        self._aside.forget()
        for array in placed:
            self._aside.leave(array)

    # --- what is under way ----------------------------------------------------------------------------

    def carried(self, source: PeerId, body: Body) -> Body:
        """A body under way: what a node that sleeps has sent lies aside, once for the node and its peer."""
        kept = self._aside.keep(body) if body and source in self._nodes else None
        return body if kept is None else kept

    def joined(self, body: Body, rest: bytes) -> Body:
        """The bytes of an envelope for its receiver."""
        return self._aside.joined(body, rest)

    def read(self, arrival: Arrival) -> None:
        """What was under way has come, and was read."""
        if not isinstance(arrival.content, Presence):
            self._aside.leave(arrival.content[0])

    def handed_on(self, arrival: Arrival) -> Arrival:
        """An arrival for another worker: its bytes, or where they lie until the step after the next one."""
        if isinstance(arrival.content, Presence) or not isinstance(arrival.content[0], memoryview):
            return arrival
        body, rest = arrival.content
        lies = self._aside.lying(body) if self._shares else None
        if lies is None:
            return arrival._replace(content=(bytes(body), rest))
        self._sent.append(body)
        return arrival._replace(content=(lies, rest))

    def taken(self, arrivals: Sequence[Arrival]) -> Iterator[Arrival]:
        """What other workers have handed on, with bodies that are here; a step begins.

        Each worker does so with what was handed on in the step before, so nobody reads any more what was
        handed on before that.
        """
        self._sent_before, self._sent = self._sent, []
        for arrival in arrivals:
            content = arrival.content
            if isinstance(content, Presence) or not isinstance(content[0], Lying):
                yield arrival
                continue
            body = content[0].read(self._files)
            kept = self._aside.keep(body)
            self._aside.forget()
            yield arrival._replace(content=(body if kept is None else kept, content[1]))

    def close(self) -> None:
        """Closes the files."""
        self._aside.close()
        self._files.close()
