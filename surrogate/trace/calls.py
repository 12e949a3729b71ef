"""Read the operator calls of a trace in the form of the table from calls to problems (`surrogate.network.dispatch`).

A profiler records shapes and element types, sometimes the values of scalar arguments, but never the shape of a result.
A missing fact is taken from neighbouring calls if it follows from them. Otherwise the error names it; nothing is
guessed.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from math import prod
from operator import mul
from typing import TypeGuard, TypeVar, cast

import numpy as np

from surrogate.features.families import NetworkProblem
from surrogate.features.kernels import LOOKUP_KERNELS
from surrogate.network import aten_call
from surrogate.network.aten_call import LOOKUP_BACKWARD, Call, Shape, Tensor, UnsupportedError, operator_name
from surrogate.network.dispatch import flops_and_bytes, has_rule, problems
from surrogate.trace import events
from surrogate.trace.events.parts import Iteration, iteration_at
from surrogate.trace.events.tables import Trace, enclosing, linked

_CONV_BACKWARD = "aten::cudnn_convolution_backward"
_HALVES = (f"{_CONV_BACKWARD}_input", f"{_CONV_BACKWARD}_weight")
_FORWARD = ("aten::cudnn_convolution", "aten::miopen_convolution")
_GRADIENT = {_CONV_BACKWARD: 1, "aten::convolution_backward": 0}
"""Backward convolution → the position of its output's gradient among its arguments."""
_TYPES: Mapping[str, str] = aten_call.DISPATCH["types"]["profiler"]
_INTEGER_TYPES: Mapping[str, str] = aten_call.DISPATCH["types"]["profiler_integers"]
_NODE_OPERATORS: Mapping[str, str] = aten_call.DISPATCH["autograd_nodes"]
"""Autograd node → its operator. The operator's arguments do not determine the shape of its result. The only argument of
the node has this shape.
"""
_WITH_BATCH = {*aten_call.DISPATCH["batch_first"]["ops"]}
_SERVER_NAMES = re.compile(r"\b(?:vllm|sgl\w*)::|RadixAttention|batch_prefill|paged_attention")
"""Matches names in traces of servers. The rows of a server's layers are the tokens of many requests."""
_LOOK_AHEAD = 12
_LOOKUP_NAMES = {*LOOKUP_BACKWARD, *LOOKUP_BACKWARD.values()}
_Read = TypeVar("_Read")


class CallReader:
    """A reader of the operator calls of one trace. Equal calls are read once.

    ``owners`` are the innermost operators with a rule at or around each row of ``trace.ranges``, -1 for none.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.owners = enclosing(trace.ranges, trace.name_matches(trace.ranges, has_rule))
        self._gradients = _gradient_shapes(trace)
        self._lookups = _lookups(trace)
        kernels = LOOKUP_KERNELS.items() if self._lookups else ()
        self._lookup_kernels = {name: trace.name_matches(trace.activities, find) for name, find in kernels}
        self._results = _result_shapes(trace)
        self._read: dict[Hashable, object] = {}

    def flops_bytes_dtype(self, row: int) -> tuple[float, float, str] | None:
        """Return FLOPs, bytes and arithmetic dtype of the owner of ``row``; None if they cannot be derived."""
        row = int(self.owners[row]) if row >= 0 else -1
        answer = self._cached(row, _flops_bytes_dtype) if row >= 0 else None
        return None if isinstance(answer, UnsupportedError) else answer

    def problems(self, row: int) -> tuple[NetworkProblem, ...]:
        """Return the problems that the operator in ``row`` computes. `UnsupportedError` names a missing fact."""
        answer = self._cached(row, problems)
        if isinstance(answer, UnsupportedError):
            raise answer
        return answer

    def _cached(self, row: int, read: Callable[[Call], _Read]) -> _Read | UnsupportedError:
        """Return ``read`` of the call in ``row``, or the `UnsupportedError` that it raises."""
        source, output, key, extra = self._argument_source(row)
        if (read, key) not in self._read:
            try:
                self._read[read, key] = read(self._call(row, source, output, extra))
            except UnsupportedError as reason:
                self._read[read, key] = reason
        return cast(_Read | UnsupportedError, self._read[read, key])

    def _argument_source(self, row: int) -> tuple[int, Shape | None, Hashable, dict[str, int]]:
        """Return the row with the call's arguments, the result's shape, a key of equal calls, and further arguments."""
        ranges, source = self.trace.ranges, row
        if self.trace.name_of(ranges, row) in _HALVES:
            # These record only the size of one tensor. The operator around them records all arguments.
            source = int(ranges.parent[row])
            if source < 0 or self.trace.name_of(ranges, source) != _CONV_BACKWARD:
                source = -1
        elif row in self._lookups:
            source = self._lookups[row]  # the lookup itself, or the lookup of an update
        output, extra = self._output(row), self._unrecorded_arguments(row, source)
        arguments = (int(column[source]) for column in (ranges.shapes, ranges.types, ranges.inputs))
        return source, output, (int(ranges.name[row]), source < 0, *arguments, output, *extra.items()), extra

    def _unrecorded_arguments(self, row: int, source: int) -> dict[str, int]:
        """Return arguments that operators do not record: ranks of a collective, and details of a lookup's kernels."""
        trace, ranges = self.trace, self.trace.ranges
        if row in self._lookups and source >= 0:
            # The x threads of a block share a row of a table; each y row of threads serves one sample.
            kernels, block = self._lookup_kernels, trace.activities.block
            rows = block[kernels["forward"] & (trace.activities.range == source), 1]
            launched = trace.activities.range == row
            marks = {name: 1 for name in ("unshared", "adagrad") if (kernels[name] & launched).any()}
            return marks | ({"rows_per_block": int(rows[0])} if rows[:1].any() else {})
        if not trace.name_of(ranges, row).startswith("nccl:"):
            return {}
        # Newer profilers record the size of the group as the last argument of the range around the collective.
        record = int(ranges.parent[row])
        values = trace.inputs[ranges.inputs[record]] if record >= 0 and ranges.inputs[record] >= 0 else ()
        has_size = record >= 0 and trace.name_of(ranges, record) == "record_param_comms"
        size = int(values[-1]) if has_size and values and values[-1].isdecimal() else trace.world_size
        return {"ranks": size} if size else {}

    def _call(self, row: int, source: int, output: Shape | None, extra: Mapping[str, object]) -> Call:
        trace, ranges = self.trace, self.trace.ranges
        shapes = trace.shapes_of(source) if source >= 0 else None
        if shapes is None:
            raise UnsupportedError("shapes" if source >= 0 else "shapes of the convolution around it")
        types, values = int(ranges.types[source]), int(ranges.inputs[source])
        recorded = trace.types[types] if types >= 0 else (), trace.inputs[values] if values >= 0 else ()
        call = recorded_call(trace.name_of(ranges, row), shapes, *recorded, output)
        mask = call.arguments.get("output_mask")
        if isinstance(mask, list):  # in a trace, another operator sums up the bias's gradient
            extra = {**extra, "output_mask": mask[:2]}
        return replace(call, arguments={**call.arguments, **extra}) if extra else call

    def _output(self, row: int) -> Shape | None:
        """Return the output shape of a row that its arguments do not determine; None if unknown.

        For a forward convolution it is the shape of its gradient, or of the input of the next call.
        """
        ranges, trace = self.trace.ranges, self.trace
        if row in self._results:
            return self._results[row]
        shapes = trace.shapes_of(row)
        if trace.name_of(ranges, row) not in _FORWARD or not shapes or len(shapes) < 2:
            return None
        image, weight = shapes[:2]
        if not (is_shape(image) and is_shape(weight)):
            return None

        def fits(shape: object) -> TypeGuard[Shape]:
            return is_shape(shape) and len(shape) == len(image) and (shape[:1], shape[1:2]) == (image[:1], weight[:1])

        around = row
        while around >= 0:
            gradient = self._gradients.get(int(ranges.sequence[around]))
            if fits(gradient):
                return gradient
            around = int(ranges.parent[around])
        thread, end = ranges.thread[row], ranges.end_ns[row]
        for later in range(row + 1, min(row + 1 + _LOOK_AHEAD, len(ranges))):
            following = trace.shapes_of(later)
            after = ranges.thread[later] == thread and ranges.start_ns[later] >= end
            if after and following and fits(following[0]):
                return following[0]
        return None


def _flops_bytes_dtype(call: Call) -> tuple[float, float, str] | None:
    counts = flops_and_bytes(call)
    return (*counts, call.dtype) if counts and counts[1] > 0 else None


def _gradient_shapes(trace: Trace) -> dict[int, Shape]:
    """Return autograd sequence number → shape of the gradient that its backward convolution got.

    This is the shape of the forward convolution's output.
    """
    ranges = trace.ranges
    places = np.array([_GRADIENT.get(name, -1) for name in trace.names] or [-1])[ranges.name]
    numbered = enclosing(ranges, ranges.sequence >= 0)
    gradients: dict[int, Shape] = {}
    for row in np.flatnonzero(places >= 0).tolist():
        shapes, around = trace.shapes_of(row), int(numbered[row])
        if around >= 0 and shapes is not None and len(shapes) > places[row] and is_shape(shapes[places[row]]):
            gradients[int(ranges.sequence[around])] = shapes[places[row]]
    return gradients


def _lookups(trace: Trace) -> dict[int, int]:
    """Return row of a lookup in embedding tables, or of its update → row of the lookup.

    Updates come in the reverse order of the lookups. Autograd's numbers are not recorded for FBGEMM's operators.
    """
    rows: dict[int, int] = {}
    open_rows: dict[str, list[int]] = defaultdict(list)
    nodes = {name: operator_name(name) for name in trace.names}
    for row in np.flatnonzero(trace.name_matches(trace.ranges, lambda name: nodes[name] in _LOOKUP_NAMES)).tolist():
        name = nodes[trace.name_of(trace.ranges, row)]
        if name in LOOKUP_BACKWARD:
            open_rows[LOOKUP_BACKWARD[name]].append(row)
            rows[row] = row
        else:
            rows[row] = open_rows[name].pop() if open_rows[name] else -1
    return rows


def _result_shapes(trace: Trace) -> dict[int, Shape]:
    """Return the shapes of results that arguments do not determine, by row. They are the gradients' shapes.

    An operator shares its number with the operators before it that made no autograd node; the last one made the node.
    """
    ranges = trace.ranges
    gradients: dict[tuple[str, int], Shape] = {}
    producers: dict[tuple[str, int], int] = {}
    for row in np.flatnonzero(
        trace.name_matches(ranges, {*_NODE_OPERATORS, *_NODE_OPERATORS.values()}.__contains__)
    ).tolist():
        name, number, shapes = trace.name_of(ranges, row), int(ranges.sequence[row]), trace.shapes_of(row)
        if name in _NODE_OPERATORS and shapes and is_shape(shapes[0]):
            gradients[_NODE_OPERATORS[name], number] = shapes[0]
        elif name not in _NODE_OPERATORS and ranges.forward_thread[row] <= 0:
            producers[name, number] = row
    results = {producers[key]: shape for key, shape in gradients.items() if key in producers and key[1] >= 0}
    for row, lookup in _lookups(trace).items():
        shapes = trace.shapes_of(row)
        if lookup != row and shapes and is_shape(shapes[0]):
            results |= {row: shapes[0], lookup: shapes[0]}
    return results


def is_shape(value: object) -> TypeGuard[Shape]:
    """Return whether the value is the shape of a tensor; () is one, too."""
    return isinstance(value, tuple) and all(isinstance(v, int) and v >= 0 for v in value)


def batch_size(trace: Trace) -> int | None:
    """Return the leading size of the first convolution's or linear layer's input.

    None if no shape is recorded, or if these rows are tokens of a server's requests.
    """
    if any(map(_SERVER_NAMES.search, trace.names)):
        return None
    layers = trace.name_matches(trace.ranges, _WITH_BATCH.__contains__) & (trace.ranges.shapes >= 0)
    for row in np.flatnonzero(layers).tolist():
        shapes = trace.shapes_of(row) or ()
        position = 1 if trace.name_of(trace.ranges, row) == "aten::addmm" else 0  # addmm's first argument is the bias
        image = shapes[position] if len(shapes) > 1 else ()
        if is_shape(image) and len(image) >= 2 and image[0] > 0:
            return int(image[0])
    return None


def sizes_of_batch(trace: Trace, batch: int) -> tuple[frozenset[int], ...]:
    """Return the sizes of problems that contain the batch: numbers of rows, and numbers of elements.

    Rows are more likely. For a tensor (16, 559, 1024), rows of a product are 16 · 559, elements 16 · 559 · 1024.
    """
    recorded_rows = np.unique(trace.ranges.shapes[trace.ranges.shapes >= 0]).tolist()
    tensors = {shape for row in recorded_rows for shape in trace.shapes[row] or () if is_shape(shape)}
    products = [list(accumulate(shape, mul)) for shape in tensors if shape[:1] == (batch,)]
    rows = {size for sizes in products for size in sizes[:-1]} - {batch}
    return frozenset(rows), frozenset(sizes[-1] for sizes in products if sizes[-1] != batch)


def rebatched(problem: NetworkProblem, old: int, new: int, batched: Sequence[Collection[int]] = ()) -> NetworkProblem:
    """Return the problem with batch ``new`` instead of ``old``; a problem without such a size is unchanged.

    If several sizes are multiples of ``old``, the size in ``batched`` (`sizes_of_batch`) changes. Raises
    `UnsupportedError` if no size or several sizes are in it.
    """
    if (rescaled := problem.at_batch(old, new)) is not None:
        return rescaled
    for sizes in batched:
        changed = {name: size for name, size in getattr(problem, "sizes", {}).items() if size in sizes}
        if len(changed) == 1:
            return replace(problem, **{name: size // old * new for name, size in changed.items()})
    raise UnsupportedError("batch dimension")


def kernels_by_owner(reader: CallReader, rows: list[int]) -> dict[int, list[int]]:
    """Return owner (row of ``trace.ranges``, -1: none) → the given activities that it launched."""
    owners: dict[int, list[int]] = defaultdict(list)
    for row, owner in zip(rows, linked(reader.owners, reader.trace.activities.range[rows]).tolist(), strict=True):
        owners[owner].append(row)
    return owners


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter tensor: its number of elements, and the time when its gradient is launched, in ns.

    At ``ready_ns`` the host has launched all work that computes the gradient.
    """

    elements: int
    ready_ns: int

    @property
    def size_bytes(self) -> int:
        """Size in fp32, in bytes."""
        return 4 * self.elements


def parameters_by_iteration(trace: Trace, iterations: Sequence[Iteration]) -> list[list[Parameter]]:
    """Return for each iteration the parameters in the order in which its backward pass finishes them.

    Autograd accumulates each gradient in a range of its own with the parameter's shape. Raises `InputError` if no
    iteration has such a range.
    """
    parameters: list[list[Parameter]] = [[] for _ in iterations]
    rows = np.flatnonzero(trace.name_matches(trace.ranges, "torch::autograd::AccumulateGrad".__eq__))
    for row, position in zip(rows.tolist(), iteration_at(tuple(iterations), trace.ranges.start_ns[rows]), strict=True):
        shape = next(iter(trace.shapes_of(row) or ()), ())
        if position >= 0 and shape and is_shape(shape) and prod(shape):
            parameters[position].append(Parameter(prod(shape), int(trace.ranges.start_ns[row])))
    if not any(parameters):
        raise events.refusal("no_parameters")
    return parameters


def recorded_call(
    name: str,
    shapes: Sequence[object],
    types: Sequence[str] = (),
    values: Sequence[str] = (),
    output: Shape | None = None,
) -> Call:
    """Return the call of an operator (``aten::addmm``) as a profiler records it, argument by argument.

    Parameters
    ----------
    name
        The operator's name.
    shapes
        A shape for each argument: () for an argument that is no tensor, a tuple of shapes for a list of tensors.
    types
        The profiler's names of types ("float", "c10::Half", "Scalar", …); a missing type counts as float.
    values
        The scalar arguments as text; "" for tensors and for unrecorded values.
    output
        The result's shape, if known.

    Raises
    ------
    UnsupportedError
        For a tensor of a type without a known rate.
    """
    op = operator_name(name)
    count = max(len(shapes), len(values), len(aten_call.SIGNATURES.get(op, [])))
    recorded = zip_longest(range(count), shapes, types[:count], values)
    arguments = {
        aten_call.argument_name(op, position): _argument(() if shape is None else shape, kind or "", value or "")
        for position, shape, kind, value in recorded
    }
    return Call(op, arguments, () if output is None else (Tensor(output),), name)


def _argument(shape: object, kind: str, value: str) -> object:
    """Return a tensor, a list of tensors, or a value parsed from its text."""
    if isinstance(shape, tuple) and shape and all(isinstance(inner, tuple) for inner in shape):
        element = next((name for name in _TYPES if f"({name})" in kind), "float")
        return [_argument(inner, element, "") for inner in shape]
    dtype = _TYPES.get(kind) or _INTEGER_TYPES.get(kind)
    if dtype is None and shape:
        if kind:
            raise UnsupportedError(f"element type {kind}")
        dtype = "fp32"
    if dtype is None:
        return _parse_value(value)
    sizes = tuple(size for size in shape if isinstance(size, int) and size >= 0) if isinstance(shape, tuple) else None
    return Tensor(sizes if sizes == shape else None, dtype, floating=kind not in _INTEGER_TYPES)


def _parse_value(text: str) -> object:
    """Return a number, a flag or a list as a trace writes it (``[1, 1]``, ``True``); `UNKNOWN` for any other text."""
    try:
        return json.loads(text.lower())
    except (ValueError, RecursionError):
        return aten_call.UNKNOWN
