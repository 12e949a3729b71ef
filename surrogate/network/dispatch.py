"""Map each call of an ATen operator or ONNX node to its problems, by the one table `dispatch.toml`.

`layers` returns a `Layer` for each kernel that a framework launches for a call. It returns none for views, sizes and
allocations (`IGNORED`) and for empty results. It raises `UnsupportedError` with a reason if an operator has no rule or
a size is missing. Nothing is guessed: if a stride or padding is not recorded,
`dispatch_convolutions.solve_stride_and_padding` solves it from the sizes of image, filter and output. It refuses sizes
that several pairs fit.

**How a trace uses it.** A trace asks for the innermost operator with launches for which `has_rule` holds::

    call = recorded_call(name, shapes, types, concrete_inputs, output)  # surrogate.trace.calls
    try:
        found = problems(call)          # () if the operator is ignored
    except UnsupportedError as reason:  # the missing fact; keep the measured time
        ...

``output`` is the result's shape if it is known: in the backward pass the gradient's shape, else the next operator's
input. Only three kinds of calls need it: convolutions without recorded stride and padding, reductions, and copies.

For ``aten::cudnn_convolution_backward_input`` and ``…_weight``, give shapes, types and values of the surrounding
``aten::cudnn_convolution_backward``: the record of each half lacks the shape of one tensor.
``aten::convolution_backward`` gives a problem for each gradient that its mask requests. The bias's gradient comes last;
in a trace a separate ``aten::sum`` launches it.

Problems have the math type that frameworks use by default before a GPU is chosen; `operators.with_default_math` sets
the math type for a GPU. `flops_and_bytes` depends on shapes alone, so that it also answers if a convolution's stride is
ambiguous. To predict another batch, give other shapes: an `operators.Streamed` has no batch of its own.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import log2, prod

from surrogate.features import DTYPES, InputError
from surrogate.features.families import NetworkProblem
from surrogate.network import dispatch_convolutions as convolutions, dispatch_passes, dispatch_rules as rules
from surrogate.network.aten_call import DISPATCH, PRODUCT_TYPES, Call, Shape, UnsupportedError, operator_name
from surrogate.network.network import UNKNOWN_WORK, Layer, NetworkBuilder, Work

RULES: dict[str, Callable[[Call], rules.Layers]] = {
    op: next(getattr(module, rule) for module in (rules, convolutions, dispatch_passes) if hasattr(module, rule))
    for rule, ops in DISPATCH["rules"].items()
    for op in ops
}
"""Operator → its rule; ATen's names have no namespace, no overload and no underscore for in-place operation."""
ELEMENTWISE: dict[str, str] = {op: op.lower() for source in ("aten", "onnx") for op in DISPATCH["elementwise"][source]}
"""Element-wise operator → kind of its problem; unmeasured kinds take their roofline time."""
ELEMENTWISE |= {op: kind for kind, ops in DISPATCH["elementwise"]["kinds"].items() for op in ops}
RULES |= {op: partial(rules.elementwise, kind=kind) for op, kind in ELEMENTWISE.items()}
RULES |= dict.fromkeys(DISPATCH["passes"].keys() - RULES.keys(), dispatch_passes.passes)
RULES |= {op: partial(rules.collective, kind=kind) for op, kind in DISPATCH["collectives"].items()}
RULES |= {each["forward"]: partial(rules.lookup, kind="embedding_bag") for each in DISPATCH["lookups"]}
RULES |= {each["backward"]: partial(rules.lookup, kind=each["update"]) for each in DISPATCH["lookups"]}
ESTIMATES: dict[str, frozenset[str]] = {kind: frozenset(ops) for kind, ops in DISPATCH["estimates"].items()}
"""Kind of arithmetic → operators of this kind that may have no problem."""
SAME_DTYPE_OPERATORS = frozenset((*DISPATCH["rules"]["conv"], *DISPATCH["rules"]["matmul"])) - PRODUCT_TYPES.keys()
"""Operators for which torch refuses operands of different floating-point types."""
IGNORED = frozenset((*DISPATCH["ignored"]["aten"], *DISPATCH["ignored"]["onnx"]))
"""Operators without a kernel: views, sizes, constants, allocations and checks."""


def is_view(call: Call, *, training: bool) -> bool:
    """Return whether the result has the memory of the argument, or needs none.

    This holds for views, and for dropout that drops nothing.
    """
    drops = call.arguments.get("p") != 0 and (training or call.arguments.get("train") is True)
    return call.op in IGNORED or (call.op in DISPATCH["ignored"]["in_inference"] and not drops)


def layers(call: Call) -> tuple[Layer, ...]:
    """Return the layers of a call, one for each kernel; none for a call that costs nothing.

    Raises `UnsupportedError` if the operator has no rule, or if a size is missing or invalid.
    """
    is_empty = bool(call.outputs) and all(result.shape is not None and 0 in result.shape for result in call.outputs)
    if is_empty or call.op in IGNORED or call.op.startswith(("prim.", "_operator.")):
        return ()
    if call.op not in RULES:
        raise UnsupportedError("a rule for this operator")
    try:
        return tuple(RULES[call.op](call))
    except InputError as error:
        raise UnsupportedError(str(error).split(";")[0]) from None
    except IndexError:
        raise UnsupportedError("sizes that fit the operator") from None


def problems(call: Call) -> tuple[NetworkProblem, ...]:
    """Return the problems of `layers`. Raises `UnsupportedError` in the same cases."""
    return tuple(layer.problem for layer in layers(call))


def has_rule(name: str) -> bool:
    """Return whether an operator's name in a trace (``aten::add_``) has a rule here and is not ignored.

    Names without a namespace belong to ONNX, except for lookups in embedding tables.
    """
    return (":" in name or name.startswith("LookupFunction")) and operator_name(name) in RULES


def flops_and_bytes(call: Call) -> tuple[float, float] | None:
    """Return FLOPs and compulsory DRAM bytes of a call; None if they cannot be derived.

    For a convolution they follow from the shapes of image, filter and output, whatever its stride and padding.
    """
    try:
        found = problems(call)
    except UnsupportedError:
        return _flops_and_bytes_of_shapes(call)
    moved_bytes = sum(int(problem.dram_bytes) for problem in found)
    return (float(sum(problem.flops for problem in found)), float(moved_bytes)) if found else None


def _flops_and_bytes_of_shapes(call: Call) -> tuple[float, float] | None:
    """Return FLOPs and bytes of a convolution, or of a pooling's gradient, with an unknown window."""
    rule = RULES.get(call.op)
    try:
        if rule is rules.pool and call.op.endswith("backward"):
            gradient = prod(call.shape("grad_output"))
            return float(gradient), float(DTYPES[call.dtype] * (2 * gradient + prod(call.shape("self"))))
        if rule not in (convolutions.conv, convolutions.conv_backward, convolutions.conv_half):
            return None
        image = call.shape("input", "self")
        filters = call.shape("weight")
        output = call.shape("grad_output") if "grad_output" in call.arguments else call.required_output_shape()
    except UnsupportedError:
        return None
    if not 3 <= len(image) == len(filters) == len(output):
        return None
    mask = call.arguments.get("output_mask") if rule is convolutions.conv_backward else [True, False]
    products = sum(map(bool, mask[:2])) if isinstance(mask, list) else 2
    sizes = prod(image) + prod(filters) + prod(output)
    return 2.0 * products * prod(output) * prod(filters[1:]), float(products * DTYPES[call.dtype] * sizes)


def estimated_work(call: Call) -> Work:
    """Return the estimated work of a call that has no problem; `UNKNOWN_WORK` if the shape of a tensor is unknown.

    Every tensor is read or written once. `_arithmetic` estimates the FLOPs. The work of control flow with unknown runs,
    and of another library's operator on several matrices, is unknown.
    """
    tensors = [*call.tensors(), *call.outputs]
    shapes = [tensor.shape for tensor in tensors if tensor.shape is not None]
    is_estimated = "." not in call.op or any(call.op in ops for ops in ESTIMATES.values())
    matrices = [shape for shape in shapes[: len(shapes) - len(call.outputs)] if len(shape) > 1]
    is_unknown = call.op in ESTIMATES["unknown"] or (len(matrices) > 1 and not is_estimated)
    if not tensors or len(shapes) < len(tensors) or is_unknown:
        return UNKNOWN_WORK
    moved_bytes = sum(tensor.bytes for tensor in tensors)
    if found := _flops_and_bytes_of_shapes(call):
        return Work(found[0], moved_bytes)
    if call.op in ESTIMATES["experts"]:
        return Work(_expert_flops(call, matrices[0]), moved_bytes)
    result = max(shapes[len(shapes) - len(call.outputs) :], key=prod, default=shapes[-1])  # others hold pivots, say
    return Work(_arithmetic(call.op, matrices, result, shapes), moved_bytes)


def _expert_flops(call: Call, tokens: Shape) -> float:
    """Return the FLOPs of a mixture of experts: every token takes the products of ``k`` experts."""
    stacks = [tensor for tensor in call.tensors()[2:] if len(tensor.shape or ()) == 3]
    packed = [tensor for tensor in stacks if not tensor.floating]  # the other stacks are then scales
    values_per_byte = 8 // max(2, min(8, call.number("expert_weight_bits", 4))) if packed else 1
    elements = values_per_byte * sum(prod((tensor.shape or ())[1:]) for tensor in packed or stacks)  # of one expert
    return 2.0 * prod(tokens[:-1]) * call.number("k", 1) * elements


def _arithmetic(op: str, operands: Sequence[Shape], result: Shape, shapes: Sequence[Shape]) -> float:
    """Return the FLOPs of an operator without a rule; an unknown operator takes one for each element.

    ``operands`` are the arguments with at least two sizes. A product has at most two FLOPs
    for each element of the first operand and each column of the result. It also has at most two for each element of the
    result and each column of that operand. A Fourier
    transform of n values takes 5 n log₂ n (Van Loan, "Computational Frameworks for the FFT", 1992).
    """
    elements = max(map(prod, shapes))
    if op in ESTIMATES["attention"] and len(operands) > 2:
        query, key, value = operands[:3]
        passes = 2.5 if op.endswith("backward") else 1.0  # five products instead of two
        return 2.0 * passes * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    if op in ESTIMATES["convolutions"] and len(operands) > 1:
        return 2.0 * prod(result) * prod(operands[1][1:])
    if op in ESTIMATES["products"] and operands and result:
        return 2.0 * min(prod(operands[0]) * result[-1], prod(result) * operands[0][-1])
    if op in ESTIMATES["fourier"]:
        return 5.0 * elements * log2(max(elements, 2))
    return float(elements)


def add_call(call: Call, builder: NetworkBuilder, *, training: bool) -> None:
    """Add a call's layers to ``builder``, or count the call as ignored or unsupported."""
    if is_view(call, training=training):
        builder.ignored[call.op] += 1
        return
    try:
        parts = layers(call)
    except UnsupportedError as reason:
        builder.omit(f"{call.op} ({reason})" if call.op in RULES else call.op, estimated_work(call))
        return
    builder.add(parts)
    if not parts:
        builder.ignored[call.op] += 1
