// Sums of the rows of embedding tables at the given indices, and their gradient (SGD); layouts: operators.py.

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
