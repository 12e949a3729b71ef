"""The CUDA kernels of the embedding bag, and the calls that CuPy's own functions serve (add, GEMM).

Embedding tables are (tables, rows, dim), indices (tables, batch, bag) int32, outputs (tables, batch, dim). A
block of 32 × rows_per_block threads serves rows_per_block samples; a warp strides over the dimension, so its
loads of a row are contiguous.
"""

from collections.abc import Callable
from typing import Any

from surrogate.collect.operators.operator import Operator

WARP = 32
LEARNING_RATE = 0.01
SOURCE = r"""
extern "C" __global__ void embedding_bag_forward(
    const float* __restrict__ weights, const int* __restrict__ indices, float* __restrict__ sums,
    long long samples, int batch, long long rows, int bag, int dim)
{
    long long sample = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (sample >= samples) return;
    const float* table = weights + sample / batch * rows * dim;
    const int* chosen = indices + sample * bag;
    for (int d = threadIdx.x; d < dim; d += 32) {
        float sum = 0.0f;
        for (int l = 0; l < bag; ++l) sum += table[(long long)chosen[l] * dim + d];
        sums[sample * dim + d] = sum;
    }
}

extern "C" __global__ void embedding_bag_backward(
    float* __restrict__ weights, const int* __restrict__ indices, const float* __restrict__ slopes,
    long long samples, int batch, long long rows, int bag, int dim, float rate)
{
    long long sample = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (sample >= samples) return;
    float* table = weights + sample / batch * rows * dim;
    const int* chosen = indices + sample * bag;
    for (int d = threadIdx.x; d < dim; d += 32) {
        float step = rate * slopes[sample * dim + d];
        for (int l = 0; l < bag; ++l) atomicAdd(&table[(long long)chosen[l] * dim + d], -step);
    }
}
"""


class CupyCalls:
    """Prepares calls of CuPy on the GPU's stream. cuBLAS keeps to fp32 FMA unless CUPY_TF32 is set."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        module = cupy.RawModule(code=SOURCE)
        self._forward = module.get_function("embedding_bag_forward")
        self._backward = module.get_function("embedding_bag_backward")

    def prepare(self, operator: Operator, empty: Callable[[tuple[int, ...]], Any]) -> Callable[[], None]:
        """A call that runs ``operator``; ``empty(shape)`` gives a random fp32 device array."""
        if operator.kind == "gemm":
            batch, m, n, k = operator.sizes
            lead = () if batch == 1 else (batch,)
            a, b, c = empty((*lead, m, k)), empty((*lead, k, n)), empty((*lead, m, n))
            return lambda: self._cupy.matmul(a, b, out=c)
        if operator.kind == "add":
            x, y, z = (empty(operator.sizes) for _ in range(3))
            return lambda: self._cupy.add(x, y, out=z)
        return self._embedding(operator, empty)

    def _embedding(self, operator: Operator, empty: Callable[..., Any]) -> Callable[[], None]:
        batch, rows, tables, bag, dim, per_block = operator.sizes
        weights, pooled = empty((tables, rows, dim)), empty((tables, batch, dim))
        indices = self._cupy.random.randint(0, rows, (tables, batch, bag), dtype=self._cupy.int32)
        samples = tables * batch
        grid, block = (-(-samples // per_block),), (WARP, per_block)
        numpy = self._cupy  # CuPy's scalars are NumPy's
        sizes = (
            numpy.int64(samples),
            numpy.int32(batch),
            numpy.int64(rows),
            numpy.int32(bag),
            numpy.int32(dim),
        )
        if operator.kind == "embedding_bag":
            return lambda: self._forward(grid, block, (weights, indices, pooled, *sizes))
        rate = numpy.float32(LEARNING_RATE)
        return lambda: self._backward(grid, block, (weights, indices, pooled, *sizes, rate))
