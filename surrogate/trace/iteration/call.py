"""An operator call as a trace gives it: shapes, element types, scalar inputs; `LackingError` for the rest."""

from dataclasses import dataclass
from math import prod

from surrogate.trace.events.tables import Trace
from surrogate.trace.work import Shape

_FLOATS = {
    "float": "fp32", "double": "fp64", "c10::half": "fp16", "half": "fp16", "c10::bfloat16": "bf16", "bfloat16": "bf16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """An operator call: tensor shapes (() for what is no tensor), types and scalar inputs ((), where not recorded)."""

    name: str
    shapes: tuple[Shape, ...]
    types: tuple[str, ...]
    inputs: tuple[str, ...]
    dtype: str
    math: str

    def tensor(self, place: int) -> Shape:
        """The shape of a tensor argument. Raises `LackingError` where there is none."""
        if place >= len(self.shapes) or not self.shapes[place]:
            raise LackingError(f"shape of argument {place + 1}")
        return self.shapes[place]

    @property
    def largest(self) -> Shape:
        """The largest tensor argument. Raises `LackingError` without one."""
        found = max(self.shapes, key=prod, default=())
        if not found:
            raise LackingError("shapes of its tensors")
        return found


class LackingError(Exception):
    """What the trace does not say of a call."""


def call_of(trace: Trace, row: int, math: str) -> Call:
    """The call in a row of ``trace.ranges``. Raises `LackingError` without shapes or floats."""
    name, shapes = trace.name_of(trace.ranges, row), trace.shapes_of(row)
    if shapes is None:
        raise LackingError("shapes")
    flat = tuple(
        s if isinstance(s, tuple) and all(isinstance(v, int) and v > 0 for v in s) else () for s in shapes
    )
    at, held = int(trace.ranges.types[row]), int(trace.ranges.inputs[row])
    types = trace.types[at] if at >= 0 else ()
    named = [types[p].lower() if p < len(types) else "float" for p, s in enumerate(flat) if s]
    floats = [_FLOATS[one] for one in named if one in _FLOATS]
    if named and not floats:
        raise LackingError(f"rate of elements of type {named[0]}")
    half = next((one for one in ("bf16", "fp16") if one in floats), None)
    dtype = half or (floats[0] if floats else "fp32")
    return Call(
        name,
        flat,
        types,
        trace.inputs[held] if held >= 0 else (),
        dtype,
        math if dtype == "fp32" else "tensor_op",
    )
