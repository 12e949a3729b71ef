"""`CudaDevice` with the fake CuPy: placement of operands, random values, faults, missing parts."""

import sys

import numpy as np
import pytest

from surrogate.collect.cudnn import gpu as module
from surrogate.collect.cudnn.gpu import ALIGNMENT, CudaDevice, GpuFaultError
from surrogate.collect.device import DeviceLostError


@pytest.fixture
def cupy(chain):
    chain.setattr(module, "POOL_ELEMENTS", 4093)
    return pytest.importorskip("cupy")


def values(gpu, pointer, count, dtype):
    """Return ``count`` elements at a device pointer."""
    return gpu.read(pointer, count * np.dtype(dtype).itemsize).view(dtype).astype(float)


def test_memory_is_shared_between_tensors_and_workspace(cupy):
    assert CudaDevice(1 << 20, 1 << 20).workspace_bytes == 1 << 20
    free, _ = cupy.cuda.runtime.memGetInfo()
    large = CudaDevice(60 << 30, 1 << 40)
    left, _ = cupy.cuda.runtime.memGetInfo()
    assert 0.05 * free < left < 0.15 * free  # cuDNN and the context need the rest
    assert large.workspace_bytes > 0.4 * 0.9 * free


def test_operands_and_result_are_aligned_and_disjoint(cupy):
    gpu = CudaDevice(1 << 20, 1 << 20)
    sizes = (1000, 513, 70_001)
    first, second, result = gpu.place(sizes, "fp32")
    assert [(pointer - first) % ALIGNMENT for pointer in (second, result)] == [0, 0]
    assert first + sizes[0] <= second
    assert second + sizes[1] <= result
    assert len(gpu.read(result, sizes[2])) == sizes[2]  # the fake refuses to read out of bounds


@pytest.mark.parametrize(("dtype", "numpy_dtype"), [("fp32", np.float32), ("fp64", np.float64), ("fp16", np.float16)])
def test_operands_are_random_normal(cupy, dtype, numpy_dtype):
    gpu = CudaDevice(1 << 20, 1 << 20)
    first, second, _ = gpu.place((400_000, 400_000, 16), dtype)
    for pointer in (first, second):
        drawn = values(gpu, pointer, 400_000 // np.dtype(numpy_dtype).itemsize, numpy_dtype)
        assert np.isfinite(drawn).all()
        assert abs(drawn.mean()) < 0.1
        assert 0.9 < drawn.std() < 1.1


def test_operands_are_refilled_after_a_result_overwrote_them(cupy):
    gpu, size = CudaDevice(1 << 20, 1 << 20), 2 << 20
    first, _, result = gpu.place((1000, 1000, size), "fp32")
    written = cupy.empty(size, cupy.uint8)
    cupy.cuda.runtime.memset(written.data.ptr, 0, size)
    cupy.cuda.runtime.memcpy(result, written.data.ptr, size, 3)  # like a convolution's result
    again, _, _ = gpu.place((size, 1000, 1000), "fp32")
    assert again == first and values(gpu, first, size // 4, np.float32).std() > 0.9


def test_only_sticky_faults_lose_the_device(cupy, chain):
    gpu = CudaDevice(1 << 20, 1 << 20)
    gpu.synchronize()
    chain.setenv("FAKE_FAULTS", "soft cudaStreamSynchronize -1 1")
    with pytest.raises(GpuFaultError, match="too many resources"):
        gpu.synchronize()
    gpu.synchronize()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        cupy.cuda.runtime.memset(0x1000, 0, 16)
    for call in (gpu.synchronize, gpu.event, gpu.flush, lambda: gpu.place((8, 8, 8), "fp16")):
        with pytest.raises(DeviceLostError, match="an illegal memory access was encountered"):
            call()


def test_the_device_reports_versions_and_properties(cupy, chain):
    chain.setenv("NVIDIA_TF32_OVERRIDE", "0")
    gpu = CudaDevice(1 << 20, 1 << 20)
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert gpu.versions() == {"cuda_runtime": "12.9", "cuda_driver": "12.9", "cupy": "14.0.1"}
    expected = {"compute_capability": "9.0", "sms": 132, "workspace_limit_bytes": 1 << 20, "tf32_override": "0"}
    assert expected.items() <= gpu.properties().items()


def test_missing_cupy_and_memory_are_refused(refused, cupy, chain):
    with chain.context() as patch:
        patch.setitem(sys.modules, "cupy", None)
        with refused("pip install 'seer-surrogate[gpu]'"):
            CudaDevice(1, 1)
    chain.setattr(module, "FLUSH_BYTES", 100 << 30)
    with refused("too few to measure with"):
        CudaDevice(1, 1)
