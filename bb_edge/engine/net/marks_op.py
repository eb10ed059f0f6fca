"""The engine's own remote op `Marks`, of component 0: a peer says what it sends, or what it took."""

from __future__ import annotations

from bb_edge.engine.net.journal import Journal
from bb_edge.engine.net.records import Records
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire import marks
from bb_edge.wire.codecs import WireReceiveError, WireReceiveErrorKind
from bb_edge.wire.envelope import Envelope, Fill
from bb_edge.wire.marks import MarksError, Took


class MarksOp:
    """Hands marks to the end of the flow that they are for."""

    def __init__(self, runtime: Runtime, records: Records, journal: Journal) -> None:
        self._runtime = runtime
        self._records = records
        self._journal = journal

    def told(self, peer: PeerId, fill: Fill, _message: Envelope) -> None:
        """Serves `MARKS_OP`. WireReceiveError for bytes that are not marks."""
        try:
            said = marks.decoded(fill.payload)
        except MarksError as error:
            raise WireReceiveError(WireReceiveErrorKind.DecodeFailed, error.what) from error
        self._runtime.count("marks.received")
        if isinstance(said, Took):
            self._records.took(peer, said)
        else:
            self._journal.marked(peer, said)
