"""Everything that reads bytes from outside, by kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .campaign import Subject
from .disk_subjects import folders, records, snapshots
from .file_subjects import array_files, construction_states
from .program_subjects import artifacts, models, plans, portable, sealed
from .tflite_subjects import ON_INTERPRETERS
from .wire_subjects import (
    Hostile,
    addresses,
    cbor_values,
    chunks,
    envelopes,
    nodes,
    packets,
    peer_ids,
    presences,
    tensors,
    typed_values,
)

__all__ = ["KINDS", "Hostile", "envelopes"]

KINDS: dict[str, Sequence[Callable[[], Subject]]] = {
    "envelopes": (envelopes,),
    "nodes": (nodes("Server", False), nodes("Client", False), nodes("Server", True), nodes("Client", True)),
    "names": (addresses, peer_ids),
    "values": (cbor_values, typed_values, tensors, presences),
    "transport": (chunks, packets),
    "artifacts": (artifacts, sealed),
    "files": (array_files, construction_states),
    "portable": (portable,),
    "models": (models, plans),
    "tflite": ON_INTERPRETERS,
    "disk": (snapshots("Server"), snapshots("Client"), records, folders),
}
