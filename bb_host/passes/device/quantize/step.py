"""`--quantize`: what happens to a target before it is stripped; layers still have the author's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bb_edge.ir import keys
from bb_host.errors import CalibrationError, NothingToQuantizeError, QuantizeError
from bb_host.ir.program import Array, Function, Program
from bb_host.passes.device.quantize.accuracy import Accuracy, compare
from bb_host.passes.device.quantize.biases import corrected
from bb_host.passes.device.quantize.calibration import observe, refuse_unknown
from bb_host.passes.device.quantize.half import halve
from bb_host.passes.device.quantize.qdq import Quantized, has_pairs, quantize_function, weighted

MODES = ("int8", "fp16")


@dataclass(frozen=True, slots=True)
class Quantization:
    """What is asked for: a mode, calibration data by input name (int8), and layers to keep in float.

    `like_litert` asks for int8 as LiteRT's own quantizer makes it, for comparisons: biases are not corrected,
    averages keep the grid of what they are of, and grids are as wide as the data, neither wider (vectors) nor
    narrower (before Sigmoid and Tanh).
    """

    mode: str
    data: Mapping[str, Array] = field(default_factory=dict)
    keep_float: Sequence[str] = ()
    like_litert: bool = False


def quantize_program(program: Program, target: str, asked: Quantization) -> tuple[Program, Accuracy | None]:
    """One target's program, and what it changes on the calibration data.

    int8 gives QDQ form: every backend function with constant weights; functions that are in that form already
    stay as they are. fp16 stores weights of backend functions as float16. Raises NothingToQuantizeError for a
    target without constant weights, or with such functions alone, QuantizeError for an unknown mode or layer,
    CalibrationError for data that do not fit.
    """
    where = f"target {target}"
    if asked.mode not in MODES:
        raise QuantizeError(f"no mode {asked.mode!r}", where, f"one of {', '.join(MODES)}")
    if asked.mode == "fp16":
        if asked.data or asked.keep_float or asked.like_litert:
            raise QuantizeError("fp16 takes no calibration data, keeps no layers and has one recipe", where)
        return halve(program), None
    main = next(f for f in program.functions if f.name == target and f.facts.entry)
    called = {(op.domain, op.op_type) for op in main.ops}
    bodies = [f for f in program.functions if f.domain == keys.BACKEND_DOMAIN and f.key in called]
    chosen = [f for f in bodies if weighted(f) and not has_pairs(f)]
    if not chosen:
        if any(map(has_pairs, bodies)):
            raise NothingToQuantizeError(
                "it is quantized already: it has QuantizeLinear and DequantizeLinear ops",
                where,
                "leave --quantize out, and it is taken as it is; layers that it has in float can be quantized"
                " by the tool that made it",
            )
        raise NothingToQuantizeError(
            "no op has constant weights", where, "what is trained on the device stays in float"
        )
    _refuse_unknown(program, chosen, asked.keep_float, where)
    found = observe(program, main, target, asked.data)
    for function in chosen:
        if function.key in found.missing:
            several = sum(f.facts.entry for f in program.functions) > 1
            _refuse_missing(main, found.missing[function.key], asked.data, target, several)
    refuse_unknown(program, asked.data, where)
    done: dict[tuple[str, str], Quantized] = {}
    for f in chosen:
        ranges = found.ranges.get(f.key, {}) if asked.like_litert else found.with_headroom(f.key)
        done[f.key] = quantize_function(f, ranges, asked.keep_float, asked.like_litert)
    if not asked.like_litert:
        done = corrected(program, main, target, asked.data, done)
    new = program.with_functions(done[f.key].function if f.key in done else f for f in program.functions)
    return new, compare(program, new, main, target, asked.data, done)


def _refuse_unknown(
    program: Program, functions: Sequence[Function], names: Sequence[str], where: str
) -> None:
    bodies = [f for f in program.functions if f.domain == keys.BACKEND_DOMAIN]  # of other targets too
    known = {n for f in bodies for op in f.ops for n in (*op.outputs[:1], op.name) if n}
    unknown = [name for name in names if name not in known]
    if unknown:
        layers = [op.outputs[0] for f in functions for op in f.ops if op.op_type != "Constant"]
        told = ", ".join(layers[:20]) + (", …" if len(layers) > 20 else "")
        raise QuantizeError(f"no layer is called {unknown[0]!r}", where, f"there are {told}")


def _refuse_missing(
    main: Function, missing: Sequence[str], data: Mapping[str, Array], target: str, several: bool
) -> None:
    told = []
    for name in missing:
        known = main.types.get(name)
        dims = (
            ""
            if known is None or known.shape is None
            else f" [{','.join(str(d or '?') for d in known.shape)}]"
        )
        told.append(f"{target}.{name}{dims}" if several else f"{name}{dims}")
    given = ", ".join(sorted(data)) or "nothing"
    raise CalibrationError(
        f"no calibration data for {', '.join(told)}, and {given} is given",
        f"target {target}",
        "save an array of samples by each of these names: numpy.savez(…)",
    )
