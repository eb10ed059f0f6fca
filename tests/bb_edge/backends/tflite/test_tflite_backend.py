"""Model nodes alone, between ONNX nodes, damaged, on other batches, and without an interpreter."""

from __future__ import annotations

import gc
import hashlib

import numpy as np
import pytest

from bb_edge.backends.tflite import backend as backend_module
from bb_edge.backends.tflite.backend import TFLiteBackend
from bb_edge.backends.tflite.errors import TFLiteInterpreterError, TFLiteModelError
from bb_edge.backends.tflite.probe import Interpreter, interpreter
from bb_edge.backends.tflite.program import MAX_INTERPRETERS, TFLiteProgram
from bb_edge.ir import keys, onnx_pb2
from bb_edge.registry import Registry
from bb_edge.roles.errors import BackendRunError, TensorBytesError

needs_one = pytest.mark.skipif(interpreter().make is None, reason=interpreter().why_not)


X = np.array([[-1, 2, -3, 4]], np.float32)


@needs_one
def test_one_model_is_a_program_of_its_own_with_fresh_results(function_of):
    program = TFLiteBackend().prepare(function_of())
    assert isinstance(program, TFLiteProgram)
    (first,) = program.run((X,))
    (second,) = program.run((-X,))
    np.testing.assert_array_equal(first, np.maximum(X, 0))
    np.testing.assert_array_equal(second, np.maximum(-X, 0))
    np.testing.assert_array_equal(program.call(None, X), first)


@needs_one
def test_models_between_onnx_nodes(function_of):
    program = TFLiteBackend().prepare(function_of(mixed=True))
    np.testing.assert_array_equal(program.run((X,))[0], np.maximum(-X, 0) + X)


@needs_one
def test_an_open_batch_keeps_a_bounded_number_of_interpreters(function_of):
    program = TFLiteBackend().prepare(function_of())
    for n in (1, 2, 3, 4, 5, 6, 2):
        x = np.repeat(X, n, 0)
        np.testing.assert_array_equal(program.run((x,))[0], np.maximum(x, 0))
    assert MAX_INTERPRETERS == 4
    assert program.made == 7  # for two rows twice: they were not among the last four
    program.run((np.repeat(X, 4, 0),))
    assert program.made == 7
    with pytest.raises(BackendRunError, match="expected shape"):
        program.run((np.zeros((1, 5), np.float32),))
    with pytest.raises(BackendRunError):
        program.run((X.astype(np.float64),))
    np.testing.assert_array_equal(program.run((X,))[0], np.maximum(X, 0))


@needs_one
def test_a_batch_is_counted_before_an_interpreter_allocates_it(function_of):
    """16 bytes a row, as the model computes one tensor of four floats."""
    program = TFLiteBackend(tensor_bytes=160).prepare(function_of())
    assert program.run((np.repeat(X, 10, 0),))[0].shape == (10, 4)
    for _ in range(2):
        with pytest.raises(TensorBytesError, match=r"176 bytes, tensor_bytes allows 160"):
            program.run((np.repeat(X, 11, 0),))
    assert program.made == 2
    assert program.run((X,))[0].shape == (1, 4)
    with pytest.raises(TensorBytesError):  # on NumPy between the models
        mixed = TFLiteBackend(tensor_bytes=160).prepare(function_of(mixed=True))
        mixed.run((np.repeat(X, 100, 0),))


@needs_one
def test_damage_is_found_before_the_interpreter_sees_it(make, function_of):
    model = make.relu()
    digest = hashlib.sha256(model).hexdigest().encode()
    for position in range(0, len(model), 7):
        damaged = bytearray(model)
        damaged[position] ^= 0x55
        with pytest.raises(TFLiteModelError):
            TFLiteBackend().prepare(function_of(bytes(damaged), digest=digest))
        with pytest.raises(TFLiteModelError):
            TFLiteBackend().prepare(function_of(model[:position], digest=digest))


def test_without_an_interpreter_the_fallback_runs_or_the_error_says_what_to_install(monkeypatch, function_of):
    none = Interpreter("", None, "ai-edge-litert: ModuleNotFoundError")
    monkeypatch.setattr(backend_module, "interpreter", lambda: none)
    plain = onnx_pb2.FunctionProto(name="plain", domain=keys.BACKEND_DOMAIN, input=["p"], output=["q"])
    plain.opset_import.add(domain="", version=21)
    plain.node.add(op_type="Relu", input=["p"], output=["q"])
    functions = {(keys.BACKEND_DOMAIN, "plain"): plain}
    backend = TFLiteBackend()
    for mixed, wanted in ((False, np.maximum(X, 0)), (True, np.maximum(-X, 0) + X)):
        program = backend.prepare(function_of(mixed=mixed, fallback="plain"), functions)
        np.testing.assert_array_equal(program.run((X,))[0], wanted)
    assert backend.fallbacks == 2
    with pytest.raises(TFLiteInterpreterError, match="litert"):
        backend.prepare(function_of())


@needs_one
def test_arrays_that_would_fit_by_broadcasting_or_a_cast_are_refused(function_of, make):
    program = TFLiteBackend().prepare(function_of())
    two = np.repeat(X, 2, 0)
    np.testing.assert_array_equal(program.run((two,))[0], np.maximum(two, 0))
    for wrong in (X[0], np.zeros((2, 1), np.float32), np.float32(3)):
        with pytest.raises(BackendRunError, match="expected shape"):
            program.run((wrong,))
    for dtype in (np.float64, np.int32, np.bool_):
        with pytest.raises(BackendRunError, match="fails"):
            program.run((two.astype(dtype),))
    np.testing.assert_array_equal(program.run((two,))[0], np.maximum(two, 0))
    target = np.full((2, 2, 4), 9, np.float32)
    with pytest.raises(BackendRunError, match="the array given for it"):
        program.run_into((two,), (target,))
    assert (target == 9).all()


@needs_one
def test_results_stay_what_they_were_when_it_runs_again_or_is_gone(function_of):
    program = TFLiteBackend().prepare(function_of())
    target = np.empty((1, 4), np.float32)
    program.run_into((X,), (target,))
    kept = [program.run((X,))[0], program.call(None, X), target]
    for _ in range(MAX_INTERPRETERS + 2):
        program.run((-X,))
    del program
    gc.collect()
    for result in kept:
        np.testing.assert_array_equal(result, np.maximum(X, 0))


def test_it_is_registered():
    assert Registry().lookup("bb.TFLiteBackend") is TFLiteBackend


class Counted:
    """An interpreter of the model of one Relu, of open batches, that counts those that are alive."""

    alive = 0

    def __init__(self, **_: object) -> None:
        type(self).alive += 1
        self.shape: tuple[int, ...] = (1, 4)

    def __del__(self) -> None:
        type(self).alive -= 1

    def get_input_details(self) -> list[dict[str, object]]:
        shapes = {"shape": np.array((1, 4)), "shape_signature": np.array((-1, 4))}
        return [{"index": 0, "name": "x", "dtype": np.float32, **shapes}]

    get_output_details = get_input_details

    def resize_tensor_input(self, index: int, shape: tuple[int, ...], strict: bool) -> None:
        self.shape = shape

    def allocate_tensors(self) -> None:
        """Allocates nothing."""

    def set_tensor(self, index: int, array: np.ndarray) -> None:
        if array.shape != self.shape:
            raise ValueError("Cannot set tensor: Dimension mismatch.")  # as the packages do
        self.array = array

    def invoke(self) -> None:
        """Leaves the input as it is."""

    def get_tensor(self, index: int) -> np.ndarray:
        return self.array


class Lends(Counted):
    """Gives its memory, and takes other memory for the run that `moves` counts; then what is written to the
    old one is lost.
    """

    moves = 0

    def allocate_tensors(self) -> None:
        self.array, self.runs = np.zeros(self.shape, np.float32), 0

    def tensor(self, index: int):
        return lambda: self.array[:]

    def set_tensor(self, index: int, array: np.ndarray) -> None:
        super().set_tensor(index, array)
        self.array = array.copy()

    def get_tensor(self, index: int) -> np.ndarray:
        return self.array.copy()

    def invoke(self) -> None:
        self.runs += 1
        if self.runs == self.moves:
            self.array = self.array.copy()


@pytest.mark.parametrize("moves", [0, 1, 2, 3])
def test_an_interpreter_that_moves_its_memory_copies_from_then_on(make, moves):
    model = make.relu()
    digest = hashlib.sha256(model).hexdigest().encode()
    kind = type("Moving", (Lends,), {"moves": moves})
    program = TFLiteProgram(kind, model, digest, 1, 1, 1, "relu")
    for turn in range(6):
        x = X * (turn + 1)
        np.testing.assert_array_equal(program.run((x,))[0], x)
        target = np.zeros_like(x)
        program.run_into((x + 1,), (target,))
        np.testing.assert_array_equal(target, x + 1)


def test_interpreters_for_several_batches_take_no_more_together_than_one_run_may(make):
    model = make.relu()
    digest = hashlib.sha256(model).hexdigest().encode()
    sizes = {}
    for limit in (0, 160):
        before = Counted.alive
        program = TFLiteProgram(Counted, model, digest, 1, 1, 1, "relu", limit)
        for rows in (10, 5, 10):  # of 16 bytes
            assert program.run((np.repeat(X, rows, 0),))[0].shape == (rows, 4)
        sizes[limit] = (program.made, Counted.alive - before)
    assert sizes == {0: (3, 3), 160: (4, 1)}
