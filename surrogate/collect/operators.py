"""Operators to measure: their keys in a log, their bytes, random problems, and the calls that run them on a GPU.

Problems are drawn log-uniformly, and every kind is drawn equally often. All values are fp32 (indices int32). Images are
NCHW; pooling windows are square and not padded.

One stopwatch times all operators on a GPU. cuDNN's legacy functions run pooling, batch norm, ReLU, layout transform and
softmax; signatures and enumerations are from cudnn_ops.h of cuDNN 8.x and 9.x. cuBLAS (through CuPy) runs GEMM, and our
own kernels run embedding bags. Embedding tables have shape (tables, rows, dim), indices (tables, batch, bag), outputs
(tables, batch, dim). A block of 32 × rows_per_block threads handles rows_per_block samples. A warp strides over the
dimension, so its loads of a row are contiguous.
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
from surrogate.features import InputError, read_toml
from surrogate.features.families import Operator, operator
from surrogate.features.families.pool import MaxPool

_TABLE = read_toml(__file__)
KINDS: Mapping[str, tuple[str, ...]] = {kind: tuple(row["sizes"]) for kind, row in _TABLE.items()}
"""Kind → the sizes in its key; other sizes have their defaults."""
MIN_BYTES, MAX_BYTES = 1 << 12, 4 << 30
"""Bounds of the bytes of a drawn problem."""


def operator_key(problem: Operator) -> str:
    """Return the problem's key in one line, for example ``softmax n=32 c=1000``."""
    return " ".join([problem.kind, *(f"{name}={getattr(problem, name)}" for name in KINDS[problem.kind])])


def parse_operator(key: str) -> Operator:
    """Return the problem of an `operator_key`."""
    kind, *words = key.split(" ")
    return operator(kind, **{name: int(size) for name, size in (word.split("=") for word in words)})


def operand_bytes(problem: Operator) -> int:
    """Return the bytes of all operands and results, each counted once."""
    size = problem.sizes
    if "bag" in size:
        elements_per_table = size["rows"] * size["dim"] + size["batch"] * (size["bag"] + size["dim"])
        return 4 * size["tables"] * elements_per_table
    dram_bytes: Any = problem.dram_bytes
    return dram_bytes // 3 * 2 if problem.kind == "batch_norm" else dram_bytes  # batch norm reads its image twice


def sample_operators(count: int, seed: int, max_bytes: int = MAX_BYTES) -> list[Operator]:
    """Return ``count`` distinct problems of at most ``max_bytes``. Equal arguments give equal problems."""
    if count < 1:
        raise InputError(f"the number of operator problems is {count}; give at least 1")
    random = np.random.Generator(np.random.PCG64(seed))
    drawn: dict[Operator, None] = {}
    kinds = cycle(KINDS)
    while len(drawn) < count:
        drawn[next(_drawn(next(kinds), random, max_bytes))] = None
    return list(drawn)


def _drawn(kind: str, random: np.random.Generator, max_bytes: int) -> Iterator[Operator]:
    """Yield problems of one kind within the bounds of bytes, without end."""
    while True:
        sizes = _DRAWS[_TABLE[kind]["draw"]](random)
        if "window" in KINDS[kind] and sizes[4] > sizes[2]:
            continue
        problem = operator(kind, **dict(zip(KINDS[kind], sizes, strict=True)))
        if MIN_BYTES <= operand_bytes(problem) <= max_bytes:
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


_DRAWS = {"image": _image, "pool": _pool, "softmax": _softmax, "gemm": _gemm, "embedding": _embedding}


ARENA_BYTES = 1 << 20
"""Size of `CudaDevice`'s arena. Operators use only its stream, events and flush; CuPy's pool holds their operands."""
PROTOTYPES = prototypes("operators")
CUDNN_KINDS = ("max_pool", "max_pool_backward", "batch_norm", "relu", "layout_transform", "softmax")
_MAX_POOLING, _NO_NAN, _RELU, _ACCURATE, _PER_CHANNEL, _SPATIAL = 0, 0, 1, 1, 1, 1
EPSILON, MOMENTUM = 1e-5, 0.1


Empty = Callable[[tuple[int, ...]], Any]
"""Function that returns a random fp32 CuPy array of a shape, with ``data.ptr`` and ``shape``."""


class CudnnCalls:
    """Calls of cuDNN on device arrays."""

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
        """Return a function that runs ``operator`` once."""
        shape = tuple(operator.sizes[name] for name in "nchw")
        x = empty(shape)
        self._set_tensor(self._x, shape)
        if isinstance(operator, MaxPool):
            return self._pool(operator, x, empty)
        y = empty(shape)
        self._set_tensor(self._y, shape, "NHWC" if operator.kind == "layout_transform" else "NCHW")
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

    def _set_tensor(self, descriptor: Handle, shape: tuple[int, ...], layout: str = "NCHW") -> None:
        self._check("cudnnSetTensor4dDescriptor", descriptor, LAYOUTS[layout], DTYPES["fp32"], *shape)

    def _pool(self, operator: MaxPool, x: Any, empty: Empty) -> Callable[[], None]:
        window, stride = operator.window, operator.stride
        geometry = window, window, 0, 0, stride, stride
        self._check("cudnnSetPooling2dDescriptor", self._pooling, _MAX_POOLING, _NO_NAN, *geometry)
        shape = (operator.n, operator.c, operator.out_h, operator.out_w)
        y = empty(shape)
        self._set_tensor(self._y, shape)
        common = (self._handle, self._pooling, self._one)

        def forward() -> None:
            arguments = *common, self._x, x.data.ptr, self._zero, self._y, y.data.ptr
            self._check("cudnnPoolingForward", *arguments)

        if operator.kind == "max_pool":
            return forward
        forward()  # the backward pass compares with the forward result to find the largest values
        dy, dx = empty(shape), empty(x.shape)

        def backward() -> None:  # the closure keeps the arrays: CuPy reuses the memory of arrays without a reference
            operands = self._y, y.data.ptr, self._y, dy.data.ptr, self._x, x.data.ptr
            self._check("cudnnPoolingBackward", *common, *operands, self._zero, self._x, dx.data.ptr)

        return backward

    def _batch_norm(self, x: Any, y: Any, shape: tuple[int, ...], empty: Empty) -> Callable[[], None]:
        per_channel = (1, shape[1], 1, 1)
        self._set_tensor(self._statistics, per_channel)
        scale, bias, mean, variance, saved_mean, saved_inverse = (empty(per_channel) for _ in range(6))

        def forward() -> None:  # the closure keeps the arrays, as in `backward`
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
    """Calls of CuPy on the GPU's stream. cuBLAS uses fp32 FMA unless CUPY_TF32 is set."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._module = cupy.RawModule(code=SOURCE)  # compiled at its first use, so only that measurement can fail

    def prepare(self, operator: Operator, empty: Empty) -> Callable[[], None]:
        """Return a function that runs ``operator`` once."""
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
        int64, int32 = self._cupy.int64, self._cupy.int32  # CuPy uses NumPy's scalars
        sizes = int64(samples), int32(batch), int64(rows), int32(bag), int32(dim)
        backward = operator.kind == "embedding_bag_backward"
        kernel = self._module.get_function("embedding_bag_backward" if backward else "embedding_bag_forward")
        rate = (self._cupy.float32(LEARNING_RATE),) if backward else ()
        return lambda: kernel(grid, block, (weights, indices, pooled, *sizes, *rate))


class GpuOperators(Instruments):
    """The device that measures operators on the current GPU."""

    def __init__(self) -> None:
        """Open the device. Raises `InputError` if libcudnn, CuPy or a GPU is missing."""
        super().__init__(ARENA_BYTES, ARENA_BYTES)
        import cupy  # pyright: ignore[reportMissingImports]

        self._cupy: Any = cupy
        try:
            self._cudnn = CudnnCalls(self.library, self.handle)
        except (CudnnError, AttributeError) as error:
            raise self.does_not_start(error) from None
        self._cupy_calls = CupyCalls(cupy)

    def device_info(self) -> DeviceInfo:
        """Return the driver's name of the GPU, and every library that an operator uses."""
        return self.facts("cuda")

    def measure(self, operator: Operator, policy: RepeatPolicy) -> Measurement:
        """Place the operands, then time the call. Raises only `DeviceLostError`, after a sticky CUDA error."""
        try:
            with self.gpu.queue:
                calls = self._cudnn if operator.kind in CUDNN_KINDS else self._cupy_calls
                return self.stopwatch.time(calls.prepare(operator, self._random), policy)
        except CudnnError as error:
            synchronize_after_failure(self.gpu, error)
            return Measurement(error.status, str(error))
        except DeviceLostError:
            raise
        except Exception as error:  # CuPy's errors: out of memory, a kernel that does not compile, cuBLAS, cuRAND
            synchronize_after_failure(self.gpu, error)
            return Measurement("failed", f"{type(error).__name__}: {one_line(error)}")
        finally:
            self._cupy.get_default_memory_pool().free_all_blocks()

    def close(self) -> None:
        """Destroy handle and descriptors, and close the instruments."""
        self._cudnn.close()
        super().close()

    def _random(self, shape: tuple[int, ...]) -> Any:
        return self._cupy.random.standard_normal(shape, dtype=self._cupy.float32)
