"""Rules of operators that CUDA runs as several kernels, each a pass over whole tensors or a product.

`passes` reads the kernels from the table ``passes`` of `dispatch.toml`. Source of the kernels: PyTorch 2.13,
``aten/src/ATen/native`` and its folder ``cuda``.
"""

from dataclasses import replace
from math import ceil, factorial, log2, prod
from string import ascii_lowercase

from surrogate.features.families.operator import Streamed
from surrogate.features.problem import DTYPES
from surrogate.network import operators
from surrogate.network.aten_call import DISPATCH, IN_PLACE, Call, Shape, Tensor, require
from surrogate.network.dispatch_convolutions import Layers
from surrogate.network.dispatch_onnx import einsum

MIN_PRODUCT_ROWS = 26
"""Rows from which torch computes Euclidean distances by a product. Source: ``native/Distance.cpp``."""
PASS_VALUES = 4096
"""Complex values that one kernel transforms: 32 KiB of shared memory. Source: Tolmachev, "VkFFT" (2023)."""
MAX_RADIX = 127
"""Largest prime factor of a length that cuFFT transforms directly. Source: cuFFT's documentation, "Accuracy"."""


def passes(call: Call) -> Layers:
    """Yield the kernels of an operator by their traffic: a kernel's text is ``tensors read > tensors written``.

    A tensor is the name of an argument, ``out`` or ``out2`` (a result), or a number of values. ``3*name`` is three
    times its size, and ``a@b`` is a row of ``b`` for each value of ``a``. ``self > new`` copies the argument, unless
    the operator changes it in place. A kernel after ``name:`` runs only if this argument is a tensor or true.
    """
    kernels = DISPATCH["passes"]["_euclidean_dist" if call.op == "cdist" else call.op]
    for number, text in enumerate(kernels):
        condition, _, kernel = text.rpartition(": ")
        value = call.arguments.get(condition)
        if condition and not (value is True or isinstance(value, Tensor)):
            continue
        if kernel == "self > new":
            if call.outputs and call.outputs[0].buffer != IN_PLACE:
                yield call.layer(operators.elementwise("copy", call.shape("self"), call.dtype), part="copy")
            continue
        reads, writes = (sum(_bytes(call, term) for term in side.split()) for side in kernel.split(">"))
        problem = _streamed(call, reads, writes)
        if kernel.startswith(">"):
            problem = operators.elementwise("fill", (problem.writes,), call.dtype)
        yield call.layer(problem, part=str(number) if len(kernels) > 1 else "")


def _streamed(call: Call, read_bytes: int, written_bytes: int, work: int = 1) -> Streamed:
    """Return a pass with this traffic, counted in values of the call's type."""
    reads, writes = (-(-part // DTYPES[call.dtype]) for part in (read_bytes, written_bytes))
    return Streamed(reads=reads, writes=max(1, writes), work=work, dtype=call.dtype, variant=call.op)


def _bytes(call: Call, term: str) -> int:
    """Return the bytes of a term of `passes`. Raises `UnsupportedError` if a size is unknown."""
    count, _, tensor_name = term.rpartition("*")
    rows, _, name = tensor_name.rpartition("@")
    if name.isdigit():
        return int(count or 1) * (prod(call.shape(rows)) if rows else 1) * int(name) * DTYPES[call.dtype]
    results = {f"out{number}".removesuffix("1"): result for number, result in enumerate(call.outputs, 1)}
    value = call.arguments.get(name, results.get(name))
    values = value if isinstance(value, list | tuple) else [value]
    tensors = [each for each in values if isinstance(each, Tensor)]
    # A trace may lack a list of indices, and it may lack the names of arguments.
    is_optional = name[:3] != "out" and not any(key.startswith("argument ") for key in call.arguments)
    is_known = tensors or name in call.arguments or is_optional
    require(is_known and all(tensor.shape is not None for tensor in tensors), "shape unknown")
    size = sum(tensor.bytes for tensor in tensors)
    if rows:
        size = prod(call.shape(rows)) * size // max(1, prod((tensors[0].shape or ())[:-1]))
    return int(count or 1) * size


def fourier(call: Call) -> Layers:
    """Yield the passes of a Fourier transform along each axis, then its scaling.

    An axis of n values takes 5 n log₂ n operations, and a pass for every `PASS_VALUES` times that its length grows.
    Axes with others between them are first copied, and so is the argument of a transform to real values.
    """
    source, result = call.tensor("self"), call.outputs[0]
    is_to_real, is_mirrored = call.op == "_fft_c2r", call.value("onesided", True) is False
    shape, axes = (result if is_to_real else source).shape or (), _axes(call, "dim")
    lengths = [shape[axis] for axis in axes]
    is_direct = all(pow(factorial(MAX_RADIX), length.bit_length(), length) == 0 for length in lengths)
    require(is_direct, f"a length with a prime factor above {MAX_RADIX}")
    others = sorted(set(range(len(shape))) - {axis % len(shape) for axis in axes})
    if is_to_real or (others and others[-1] - others[0] >= len(others)):
        yield call.layer(_streamed(call, source.bytes, source.bytes, 0), part="copy")
    result_bytes = result.bytes // (2 if is_mirrored else 1)
    between = source.bytes if is_to_real else result_bytes
    steps = [length for length in lengths for _ in range(ceil(log2(max(2, length)) / log2(PASS_VALUES)))]
    for number, length in enumerate(steps):
        reads = source.bytes if number == 0 else between
        writes = result_bytes if number == len(steps) - 1 else between
        work = ceil(5 * log2(max(2, length)) * DTYPES[call.dtype] / 8)  # of 8 bytes, a complex value
        yield call.layer(_streamed(call, reads, writes, work), part=str(number))
    if is_mirrored:  # the transform gives half of the values
        yield call.layer(_streamed(call, result_bytes, result_bytes, 0), part="mirror")
    if call.number("normalization", 0):
        yield call.layer(_streamed(call, result.bytes, result.bytes), part="scale")


def _axes(call: Call, name: str) -> Shape:
    """Return the axes in an argument, which may be none."""
    values = call.value(name)
    return call.numbers(name, len(values), 0) if isinstance(values, list | tuple) and values else ()


def distances(call: Call) -> Layers:
    """Yield distances between all rows of two tensors: by a product, or by one kernel that reads each pair of rows."""
    first, second, result = call.shape("x1"), call.shape("x2"), call.required_output_shape()
    (rows, depth), columns, mode = first[-2:], second[-2], call.value("compute_mode", 0)
    is_euclidean = call.value("p", 2) == 2 and (mode == 1 or (mode == 0 and max(rows, columns) >= MIN_PRODUCT_ROWS))
    if is_euclidean or call.op == "_euclidean_dist":
        product = operators.gemm(rows, columns, depth + 2, batch=prod(result[:-2]), dtype=call.dtype)
        yield call.layer(product, part="product")
        yield from passes(call)
        return
    reads, writes = prod(first) + prod(second), prod(result)
    yield call.layer(operators.Scores(reads=reads, writes=writes, work=3 * depth, dtype=call.dtype, variant=call.op))


def trilinear(call: Call) -> Layers:
    """Yield the products of three tensors as torch computes them: those of an equation for each unrolled index.

    The axes of a term, without its expanded ones, are letters of the equation.
    """
    terms: dict[str, Tensor] = {}
    equation, counts, letters = [], [1], ascii_lowercase
    unrolled, summed = call.number("unroll_dim", 1), _axes(call, "sumdim")
    for number in "123":
        tensor, expanded = call.tensor(f"i{number}"), _axes(call, f"expand{number}")
        axes = [axis for axis in range(len(tensor.shape or ()) + len(expanded)) if axis not in expanded]
        sizes = dict(zip(axes, tensor.shape or (), strict=True))
        counts.append(sizes.pop(unrolled, 1))
        equation.append("".join(letters[axis] for axis in sizes))
        terms[number] = replace(tensor, shape=tuple(sizes.values()))
    result = sorted(set("".join(equation)) - {letters[axis] for axis in summed})
    arguments = {**terms, "equation": f"{','.join(equation)}->{''.join(result)}"}
    products, count = tuple(einsum(replace(call, arguments=arguments))), max(counts)
    added = (prod(call.required_output_shape()) // (1 if unrolled in summed else count),)
    yield call.layer(operators.elementwise("fill", call.required_output_shape(), call.dtype), part="fill")
    for _ in range(count):
        yield from (*products, call.layer(operators.pointwise("add", [added, added], added, call.dtype), part="sum"))
