"""Operators to measure: their name in a log, the bytes they hold, problems drawn log-uniformly, and what runs them.

Every kind is drawn as often as any other. Everything is fp32 (indices int32), images are NCHW, pooling windows square
and not padded. On a GPU they run under one stopwatch: by cuDNN, by cuBLAS (through CuPy), and by kernels of our own.
cuDNN's legacy functions run pooling, batch norm, ReLU, layout transform and softmax; source of signatures and
enumerations: cudnn_ops.h of cuDNN 8.x and 9.x. Embedding tables are (tables, rows, dim), indices (tables, batch, bag)
int32, outputs (tables, batch, dim): a block of 32 × rows_per_block threads serves rows_per_block samples; a warp
strides over the dimension, so its loads of a row are contiguous.
"""

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from surrogate.collect.cudnn.gpu import synchronize_after_failure
from surrogate.collect.cudnn.instruments import Instruments
from surrogate.collect.cudnn.library import DTYPES, LAYOUTS, CudnnError, Handle, Library, prototypes
from surrogate.collect.device import DeviceInfo, DeviceLostError, Measurement, RepeatPolicy, one_line
from surrogate.features.errors import InputError
from surrogate.features.families import Operator, operator
from surrogate.features.families.pool import MaxPool

IMAGE = ("n", "c", "h", "w")
POOL = (*IMAGE, "window", "stride")
GEMM = ("batch", "m", "n", "k")
EMBEDDING = ("batch", "rows", "tables", "bag", "dim", "rows_per_block")
SOFTMAX = ("n", "c")
KINDS: Mapping[str, tuple[str, ...]] = {
    "max_pool": POOL,
    "max_pool_backward": POOL,
    "batch_norm": IMAGE,
    "relu": IMAGE,
    "add": IMAGE,
    "layout_transform": IMAGE,
    "softmax": SOFTMAX,
    "gemm": GEMM,
    "embedding_bag": EMBEDDING,
    "embedding_bag_backward": EMBEDDING,
}
"""Kind → the sizes that its name holds; others have their defaults."""
MIN_BYTES, MAX_BYTES = 1 << 12, 4 << 30
"""Bounds of the drawn problems."""


def operator_key(problem: Operator) -> str:
    """Names the problem in one line, as in ``softmax n=32 c=1000``."""
    return " ".join([problem.kind, *(f"{name}={getattr(problem, name)}" for name in KINDS[problem.kind])])


def parse_operator(key: str) -> Operator:
    """The inverse of `operator_key`."""
    kind, *words = key.split(" ")
    return operator(kind, **{name: int(size) for name, size in (word.split("=") for word in words)})


def held_bytes(problem: Operator) -> int:
    """Bytes of all operands and results together, each held once."""
    size = problem.sizes
    if "bag" in size:
        a_table = size["rows"] * size["dim"] + size["batch"] * (size["bag"] + size["dim"])
        return 4 * size["tables"] * a_table
    held: Any = problem.dram_bytes
    return held // 3 * 2 if problem.kind == "batch_norm" else held  # which reads its image twice


def sample_operators(count: int, seed: int, max_bytes: int = MAX_BYTES) -> list[Operator]:
    """``count`` distinct problems of at most ``max_bytes``; the same for the same arguments."""
    if count < 1:
        raise InputError(f"{count} operator problems are none; give at least 1")
    random = np.random.Generator(np.random.PCG64(seed))
    drawn: dict[Operator, None] = {}
    kinds = cycle(KINDS)
    while len(drawn) < count:
        drawn[next(_drawn(next(kinds), random, max_bytes))] = None
    return list(drawn)


def _drawn(kind: str, random: np.random.Generator, max_bytes: int) -> Iterator[Operator]:
    """Problems of one kind within the bytes, without end."""
    while True:
        sizes = _DRAWS[KINDS[kind]](random)
        if "window" in KINDS[kind] and sizes[4] > sizes[2]:
            continue
        problem = operator(kind, **dict(zip(KINDS[kind], sizes, strict=True)))
        if MIN_BYTES <= held_bytes(problem) <= max_bytes:
            yield problem


def _log_uniform(random: np.random.Generator, *spans: tuple[int, int]) -> tuple[int, ...]:
    return tuple(round(math.exp(random.uniform(math.log(low), math.log(high)))) for low, high in spans)


def _image(random: np.random.Generator) -> tuple[int, ...]:
    n, c, h = _log_uniform(random, (1, 256), (1, 2048), (4, 256))
    return n, c, h, h


def _pool(random: np.random.Generator) -> tuple[int, ...]:
    window = int(random.choice([2, 3, 3, 5, 7]))
    stride = int(random.choice([1, 2, 2, window]))
    return *_image(random), window, stride


def _softmax(random: np.random.Generator) -> tuple[int, ...]:
    return _log_uniform(random, (1, 16384), (8, 65536))


def _gemm(random: np.random.Generator) -> tuple[int, ...]:
    batch = (1,) if random.random() < 0.6 else _log_uniform(random, (2, 512))
    return *batch, *_log_uniform(random, *[(8, 8192)] * 3)


def _embedding(random: np.random.Generator) -> tuple[int, ...]:
    dim = int(random.choice([16, 32, 64, 128]))
    sizes = _log_uniform(random, (64, 8192), (1000, 2_000_000), (1, 64), (1, 128))
    return *sizes, dim, int(random.choice([4, 32]))


_DRAWS: dict[tuple[str, ...], Callable[[np.random.Generator], tuple[int, ...]]] = {
    IMAGE: _image,
    POOL: _pool,
    SOFTMAX: _softmax,
    GEMM: _gemm,
    EMBEDDING: _embedding,
}


ARENA_BYTES = 1 << 20
"""`Gpu` lends its stream, events and flush here; the operands are CuPy's own, from its pool."""
PROTOTYPES = prototypes("operators")
CUDNN_KINDS = ("max_pool", "max_pool_backward", "batch_norm", "relu", "layout_transform", "softmax")
_MAX_POOLING, _NO_NAN, _RELU, _ACCURATE, _PER_CHANNEL, _SPATIAL = 0, 0, 1, 1, 1, 1
EPSILON, MOMENTUM = 1e-5, 0.1


Empty = Callable[[tuple[int, ...]], Any]
"""Gives a random fp32 device array of a shape, as CuPy has it: with ``data.ptr`` and ``shape``."""


class CudnnCalls:
    """Prepares calls of cuDNN on device arrays."""

    def __init__(self, library: Library, handle: Handle) -> None:
        self._library = library
        self._handle = handle
        self._check = library.check
        library.declare(PROTOTYPES)
        with ExitStack() as owned:
            self._x, self._y, self._statistics = (library.create("Tensor", owned) for _ in range(3))
            self._pooling, self._activation = (library.create(kind, owned) for kind in ("Pooling", "Activation"))
            self._check("cudnnSetActivationDescriptor", self._activation, _RELU, _NO_NAN, 0.0)
            self.close = owned.pop_all().close
        self._one, self._zero = (ctypes.byref(ctypes.c_float(value)) for value in (1.0, 0.0))

    def prepare(self, operator: Operator, empty: Empty) -> Callable[[], None]:
        """A call that runs ``operator``."""
        shape = tuple(operator.sizes[name] for name in "nchw")
        x = empty(shape)
        self._describe(self._x, shape)
        if isinstance(operator, MaxPool):
            return self._pool(operator, x, empty)
        y = empty(shape)
        self._describe(self._y, shape, "NHWC" if operator.kind == "layout_transform" else "NCHW")
        if operator.kind == "batch_norm":
            return self._batch_norm(x, y, shape, empty)
        name, leading = {
            "relu": ("cudnnActivationForward", (self._activation,)),
            "softmax": ("cudnnSoftmaxForward", (_ACCURATE, _PER_CHANNEL)),
            "layout_transform": ("cudnnTransformTensor", ()),
        }[operator.kind]
        return lambda: self._check(
            name, self._handle, *leading, self._one, self._x, x.data.ptr, self._zero, self._y, y.data.ptr
        )

    def _describe(self, descriptor: Handle, shape: tuple[int, ...], layout: str = "NCHW") -> None:
        self._check("cudnnSetTensor4dDescriptor", descriptor, LAYOUTS[layout], DTYPES["fp32"], *shape)

    def _pool(self, operator: MaxPool, x: Any, empty: Empty) -> Callable[[], None]:
        window, stride = operator.window, operator.stride
        geometry = window, window, 0, 0, stride, stride
        self._check("cudnnSetPooling2dDescriptor", self._pooling, _MAX_POOLING, _NO_NAN, *geometry)
        shape = (operator.n, operator.c, operator.out_h, operator.out_w)
        y = empty(shape)
        self._describe(self._y, shape)
        call = self._check
        common = (self._handle, self._pooling, self._one)

        def forward() -> None:
            arguments = *common, self._x, x.data.ptr, self._zero, self._y, y.data.ptr
            call("cudnnPoolingForward", *arguments)

        if operator.kind == "max_pool":
            return forward
        forward()  # the backward pass finds the largest values by comparing with the forward's result
        dy, dx = empty(shape), empty(x.shape)

        def backward() -> None:  # holds the arrays themselves: CuPy gives memory to others once nobody does
            operands = self._y, y.data.ptr, self._y, dy.data.ptr, self._x, x.data.ptr
            call("cudnnPoolingBackward", *common, *operands, self._zero, self._x, dx.data.ptr)

        return backward

    def _batch_norm(self, x: Any, y: Any, shape: tuple[int, ...], empty: Empty) -> Callable[[], None]:
        per_channel = (1, shape[1], 1, 1)
        self._describe(self._statistics, per_channel)
        scale, bias, mean, variance, saved_mean, saved_inverse = (empty(per_channel) for _ in range(6))

        def forward() -> None:  # holds the arrays themselves, as `backward` does
            images = self._x, x.data.ptr, self._y, y.data.ptr
            learned = self._statistics, scale.data.ptr, bias.data.ptr
            running = MOMENTUM, mean.data.ptr, variance.data.ptr, EPSILON
            arguments = *images, *learned, *running, saved_mean.data.ptr, saved_inverse.data.ptr
            name = "cudnnBatchNormalizationForwardTraining"
            self._check(name, self._handle, _SPATIAL, self._one, self._zero, *arguments)

        return forward


WARP = 32
LEARNING_RATE = 0.01
SOURCE = Path(__file__).with_name("embedding_bag.cu").read_text(encoding="utf-8")


class CupyCalls:
    """Prepares calls of CuPy on the GPU's stream. cuBLAS keeps to fp32 FMA unless CUPY_TF32 is set."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._module = cupy.RawModule(code=SOURCE)  # compiled at its first function, so that a failure is that one's

    def prepare(self, operator: Operator, empty: Empty) -> Callable[[], None]:
        """A call that runs ``operator``."""
        if operator.kind == "gemm":
            batch, m, n, k = operator.sizes.values()
            lead = () if batch == 1 else (batch,)
            a, b, c = empty((*lead, m, k)), empty((*lead, k, n)), empty((*lead, m, n))
            return lambda: self._cupy.matmul(a, b, out=c)
        if operator.kind == "add":
            x, y, z = (empty(tuple(operator.sizes.values())) for _ in range(3))
            return lambda: self._cupy.add(x, y, out=z)
        return self._embedding(operator, empty)

    def _embedding(self, operator: Operator, empty: Empty) -> Callable[[], None]:
        batch, rows, tables, bag, dim, per_block = operator.sizes.values()
        weights, pooled = empty((tables, rows, dim)), empty((tables, batch, dim))
        indices = self._cupy.random.randint(0, rows, (tables, batch, bag), dtype=self._cupy.int32)
        samples = tables * batch
        grid, block = (-(-samples // per_block),), (WARP, per_block)
        wide, narrow = self._cupy.int64, self._cupy.int32  # CuPy's scalars are NumPy's
        sizes = wide(samples), narrow(batch), wide(rows), narrow(bag), narrow(dim)
        backward = operator.kind == "embedding_bag_backward"
        kernel = self._module.get_function("embedding_bag_backward" if backward else "embedding_bag_forward")
        rate = (self._cupy.float32(LEARNING_RATE),) if backward else ()
        return lambda: kernel(grid, block, (weights, indices, pooled, *sizes, *rate))


class GpuOperators(Instruments):
    """The operators' device on the current GPU."""

    def __init__(self) -> None:
        """Raises `InputError` where libcudnn, CuPy or a GPU is missing."""
        super().__init__(ARENA_BYTES, ARENA_BYTES)
        import cupy  # pyright: ignore[reportMissingImports]

        self._cupy: Any = cupy
        try:
            self._cudnn = CudnnCalls(self.library, self.handle)
        except (CudnnError, AttributeError) as error:
            raise self.does_not_start(error) from None
        self._cupy_calls = CupyCalls(cupy)

    def device_info(self) -> DeviceInfo:
        """The driver's name of the GPU, and every library that an operator uses."""
        return self.facts("cuda")

    def measure(self, operator: Operator, policy: RepeatPolicy) -> Measurement:
        """Place the operands, then time the call. Raises `DeviceLostError` after a sticky CUDA error, nothing else."""
        try:
            with self.gpu.queue:
                return self.stopwatch.time(self._prepared(operator), policy)
        except CudnnError as error:
            synchronize_after_failure(self.gpu, error.code)
            return Measurement(error.status, str(error))
        except DeviceLostError:
            raise
        except Exception as error:  # CuPy's many: out of memory, a kernel that does not compile, cuBLAS, cuRAND
            synchronize_after_failure(self.gpu)
            return Measurement("failed", f"{type(error).__name__}: {one_line(error)}")
        finally:
            self._cupy.get_default_memory_pool().free_all_blocks()

    def close(self) -> None:
        """Destroy handle and descriptors, and switch the instruments off."""
        self._cudnn.close()
        super().close()

    def _prepared(self, operator: Operator) -> Callable[[], None]:
        calls = self._cudnn if operator.kind in CUDNN_KINDS else self._cupy_calls
        return calls.prepare(operator, self._random)

    def _random(self, shape: tuple[int, ...]) -> Any:
        return self._cupy.random.standard_normal(shape, dtype=self._cupy.float32)
