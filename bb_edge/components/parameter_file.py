"""The file of a model's parameters, an `.npz` with one array per parameter under its name in the ONNX file.

`bb-edge export` and `--save-model` write it, `bb-host export` and `compile --params` read it. Any file that
NumPy writes with such names is read too. Beside the arrays there is an entry `METADATA`, a JSON object as a
text, with the origin of the parameters and the hash of their layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bb_edge.input_files import MAX_ARTIFACT
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import fnv1a_64

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = [
    "METADATA",
    "UNTRAINED",
    "ParameterFile",
    "ParameterFileError",
    "broken",
    "layout_of",
    "pack",
    "unpack",
]

METADATA: Final = "__parameters__"
"""The name of the entry that is not a parameter."""

UNTRAINED: Final = "personal_untrained"
"""In the metadata: names of personal parameters that the node has never trained."""

_LAYOUT: Final = "layout_hash"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the same parameters are the same bytes


class ParameterFileError(BBError):
    """A file without parameters, or with damaged ones."""


class ParameterFile(NamedTuple):
    """The arrays of a file in the order of the model's flat vector, and its metadata.

    `meta` is empty where NumPy alone wrote the file.
    """

    arrays: dict[str, Array]
    meta: dict[str, Any]


def layout_of(arrays: Mapping[str, Array]) -> tuple[str, str]:
    """Returns the layout of a flat vector, `"w1:64x32;b1:32"`, and its FNV-1a-64 in hex."""
    layout = ";".join(f"{name}:{'x'.join(map(str, array.shape))}" for name, array in arrays.items())
    return layout, f"{fnv1a_64(layout.encode()):016x}"


def broken(arrays: Mapping[str, Array]) -> list[str]:
    """Returns the names of arrays that hold inf or nan."""
    return [
        name for name, array in arrays.items() if array.dtype.kind == "f" and not np.isfinite(array).all()
    ]


def pack(arrays: Mapping[str, Array], meta: Mapping[str, object]) -> bytes:
    """Returns the bytes of a file; equal arrays and `meta` (JSON values) give equal bytes."""
    import io
    import json
    import zipfile  # a model that is never exported does not pay for it

    entries = dict(arrays)
    record = {**meta, _LAYOUT: layout_of(arrays)[1]}
    entries[METADATA] = np.array(json.dumps(record, sort_keys=True))
    content = io.BytesIO()
    # np.savez takes no array that is called `file`, and writes the time.
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in entries.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy", _EPOCH), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
    return content.getvalue()


def unpack(data: bytes, where: str = "parameters") -> ParameterFile:
    """Reads the parameters in a file. ParameterFileError where it is damaged, or its arrays were changed."""
    import io

    from bb_edge.array_files import ArrayFileError, unpacked
    from bb_edge.ir.plain_values import from_json

    try:
        arrays = unpacked(io.BytesIO(data), where, MAX_ARTIFACT)
        text = arrays.pop(METADATA, None)
        meta = {} if text is None else from_json(str(text))
    except (ArrayFileError, ValueError) as error:
        hint = "give the .npz of bb-edge export or --save-model, and copy it again if it is one"
        what = error.what if isinstance(error, ArrayFileError) else str(error)
        raise ParameterFileError(f"no file of parameters: {what}", where, hint) from error
    if "" in arrays:
        raise ParameterFileError(
            "one array without a name", where, "save parameters by name: np.savez(file, **arrays)"
        )
    if not isinstance(meta, dict):
        raise ParameterFileError("its metadata is not a JSON object", where, "export the parameters again")
    if not arrays:
        raise ParameterFileError("it holds no arrays", where, "export the parameters again")
    known, layout = meta.get(_LAYOUT), layout_of(arrays)[1]
    if known is not None and known != layout:
        raise ParameterFileError(
            f"its arrays are not those that were exported: layout {layout}, {known} was written",
            where,
            "export the parameters again, or save your own arrays without the entry " + METADATA,
        )
    return ParameterFile(arrays, meta)
