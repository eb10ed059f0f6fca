"""Reads the ONNX files that users name, and the files of weights beside them.

Regular files alone are read: a FIFO would be waited for without end, a device has none. A tensor takes no
more of a file of weights than its shape says.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from bb_edge.input_files import MAX_ARTIFACT, FileRefused, read_regular, refuse_special

if TYPE_CHECKING:
    import onnx


_WIDEST = 16
"""Bytes of an element whose type NumPy does not know: those of a complex number."""


class _Named(io.BytesIO):
    """Bytes with the name of their file, by which onnx tells ONNX's text formats."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name


def read_onnx(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """The model in a file, without the weights that lie beside it.

    Raises FileRefused for what is not a regular file or too large for protobuf, OSError where it cannot be
    read, and DecodeError or ValueError where it holds no model.
    """
    import onnx

    data = read_regular(path, MAX_ARTIFACT, "is it an ONNX file? larger ones keep their weights beside them")
    return onnx.load(_Named(data, os.fspath(path)), load_external_data=False)


def load_weights(model: onnx.ModelProto, folder: str | os.PathLike[str]) -> None:
    """Reads the weights that lie in files beside a model into it.

    Raises FileRefused where one is not a regular file, and where a tensor asks for more bytes than it has;
    ValidationError, OSError, ValueError and RuntimeError where onnx cannot read them.
    """
    from onnx.external_data_helper import load_external_data_for_model

    for tensor in _external(model):
        _held(tensor, Path(folder))
    try:
        load_external_data_for_model(model, os.fspath(folder))
    except MemoryError:
        raise FileRefused(
            "its weights do not fit into memory", os.fspath(folder), "compile it on a larger machine"
        ) from None


def _held(tensor: onnx.TensorProto, folder: Path) -> None:
    """FileRefused where reading a tensor's weights could take for ever, or more than it holds."""
    from onnx.external_data_helper import ExternalDataInfo

    info = ExternalDataInfo(tensor)
    path = folder / info.location
    refuse_special(path)
    if info.location and path.is_file():
        most = prod(tensor.dims) * _itemsize(tensor.data_type)
        asked = info.length or max(0, path.stat().st_size - (info.offset or 0))
        if asked > most:
            raise FileRefused(
                f"tensor {tensor.name!r} has {most} bytes, and {asked} are to be read for it",
                str(path),
                "export the model again",
            )


def _itemsize(data_type: int) -> int:
    import onnx

    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize)
    except (KeyError, TypeError):
        return _WIDEST


def _external(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors whose weights lie elsewhere."""
    from onnx.external_data_helper import uses_external_data

    nodes = (node for function in model.functions for node in function.node)
    for tensor in (*_of_graph(model.graph), *_of_nodes(nodes)):
        if uses_external_data(tensor):
            yield tensor


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            for graph in (attribute.g, *attribute.graphs):
                yield from _of_graph(graph)
