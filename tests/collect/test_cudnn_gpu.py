"""The GPU's arena over a stand-in for CuPy on NumPy arrays: placement, random operands, faults, missing parts."""

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from surrogate.collect.cudnn import gpu as module
from surrogate.collect.cudnn.gpu import ALIGNMENT, Gpu, GpuFaultError
from surrogate.collect.device import DeviceLostError
from surrogate.features.errors import InputError

FREE = 64 << 20


class Memory:
    """A pointer into device memory, as CuPy's: copies need no kernel."""

    def __init__(self, ptr):
        self.ptr = ptr

    def __add__(self, offset):
        return Memory(self.ptr + offset)

    def copy_from_device_async(self, source, size, stream):
        ctypes.memmove(self.ptr, source.ptr, size)

    def memset_async(self, value, size, stream):
        ctypes.memset(self.ptr, value, size)


class Array(np.ndarray):
    """CuPy's arrays as far as they need neither cuRAND nor a compiler: no element is set by a kernel."""

    @property
    def data(self):
        return Memory(self.ctypes.data)

    def set(self, values):
        np.copyto(self, values)

    def __setitem__(self, key, value):
        raise RuntimeError("a kernel would have to be compiled")


class Stream:
    ptr, fault = 7, None

    def synchronize(self):
        if Stream.fault:
            raise CudaError(Stream.fault)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class CudaError(RuntimeError):
    pass


def device_synchronize():
    if Stream.fault == "sticky":
        raise CudaError("an illegal memory access\nwas encountered")


def fake_cupy():
    runtime = SimpleNamespace(
        CUDARuntimeError=CudaError,
        getDeviceProperties=lambda _: {
            "name": b"NVIDIA Fake",
            "major": 9,
            "minor": 0,
            "multiProcessorCount": 132,
        },
        memGetInfo=lambda: (FREE, FREE),
        runtimeGetVersion=lambda: 13000,
        driverGetVersion=lambda: 12080,
        deviceSynchronize=device_synchronize,
    )
    cuda = SimpleNamespace(
        runtime=runtime,
        Device=lambda: SimpleNamespace(id=0, pci_bus_id="0000:01:00.0", synchronize=lambda: None),
        Stream=lambda non_blocking: Stream(),
    )
    return SimpleNamespace(
        __version__="14.0", asnumpy=np.asarray, cuda=cuda, uint8=np.uint8,
        empty=lambda size, dtype: np.zeros(size, dtype).view(Array),
    )  # fmt: skip


@pytest.fixture
def cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    monkeypatch.setattr(module, "POOL_ELEMENTS", 4093)
    monkeypatch.setattr(module, "FLUSH_BYTES", 1 << 16)
    monkeypatch.setattr(Stream, "fault", None)


def values(gpu, pointer, count, dtype):
    """``count`` elements at a device pointer."""
    start = pointer - gpu._tensors.data.ptr
    raw = gpu._tensors[start : start + count * np.dtype(dtype).itemsize]
    return np.asarray(raw).view(dtype).astype(float)


def test_memory_is_shared_between_tensors_and_workspace(cupy):
    small = Gpu(1 << 20, 1 << 20)
    assert small.workspace_bytes == 1 << 20
    assert small._tensors.size == 3 * ((1 << 20) + ALIGNMENT)
    large = Gpu(1 << 30, 1 << 34)
    assert large.workspace_bytes + large._tensors.size <= 0.9 * FREE
    assert large.workspace_bytes > 0.4 * 0.9 * FREE


def test_operands_and_result_are_aligned_and_apart(cupy):
    gpu = Gpu(1 << 20, 1 << 20)
    sizes = (1000, 513, 70_001)
    first, second, result = gpu.place(sizes, "fp32")
    base = gpu._tensors.data.ptr
    assert [(pointer - base) % ALIGNMENT for pointer in (first, second, result)] == [0, 0, 0]
    assert first + sizes[0] <= second
    assert second + sizes[1] <= result
    assert result + sizes[2] <= base + gpu._tensors.size


@pytest.mark.parametrize(("dtype", "numpy_dtype"), [("fp32", np.float32), ("fp64", np.float64), ("fp16", np.float16)])
def test_operands_are_random_normal(cupy, dtype, numpy_dtype):
    gpu = Gpu(1 << 20, 1 << 20)
    first, second, _ = gpu.place((400_000, 400_000, 16), dtype)
    for pointer in (first, second):
        found = values(gpu, pointer, 400_000 // np.dtype(numpy_dtype).itemsize, numpy_dtype)
        assert np.isfinite(found).all()
        assert abs(found.mean()) < 0.1
        assert 0.9 < found.std() < 1.1


def test_operands_are_filled_again_where_a_result_lay(cupy):
    gpu = Gpu(1 << 20, 1 << 20)
    held = gpu._tensors.size
    _, _, result = gpu.place((1000, 1000, held - 8192), "fp32")
    start = result - gpu._tensors.data.ptr
    np.asarray(gpu._tensors)[start:] = 0  # what a convolution wrote
    first, _, _ = gpu.place((held // 2, 1000, 1000), "fp32")
    assert values(gpu, first, held // 8, np.float32).std() > 0.9


def test_memory_is_read_back(cupy):
    gpu = Gpu(1 << 20, 1 << 20)
    first, second, _ = gpu.place((1024, 1024, 16), "fp32")
    raw = gpu.read(second, 1024)
    assert raw.view(np.float32) == pytest.approx(values(gpu, second, 256, np.float32))
    assert (gpu.read(first, 1024) != raw).any()


def test_too_large_tensors_are_refused(cupy):
    gpu = Gpu(1 << 20, 1 << 20)
    with pytest.raises(MemoryError, match="the arena holds"):
        gpu.place((1 << 21, 1 << 20, 1 << 20), "fp32")


def test_faults_that_pass_and_faults_that_stay(cupy, monkeypatch):
    gpu = Gpu(1 << 20, 1 << 20)
    gpu.synchronize()
    monkeypatch.setattr(Stream, "fault", "out of resources")
    with pytest.raises(GpuFaultError, match="out of resources"):
        gpu.synchronize()
    monkeypatch.setattr(Stream, "fault", "sticky")
    with pytest.raises(DeviceLostError, match="an illegal memory access was encountered"):
        gpu.synchronize()


def test_facts_for_the_header(cupy, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    gpu = Gpu(1 << 20, 1 << 20)
    assert gpu.name == "NVIDIA Fake"
    assert gpu.versions() == {"cuda_runtime": "13.0", "cuda_driver": "12.8", "cupy": "14.0"}
    assert gpu.properties() == {
        "compute_capability": "9.0", "sms": 132, "workspace_limit_bytes": 1 << 20, "tf32_override": "0",
    }  # fmt: skip


def test_what_is_missing_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InputError, match=r"pip install 'seer-surrogate\[gpu\]'"):
        Gpu(1, 1)
    cupy = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(InputError, match="too few to measure with"):  # the real pools exceed the fake's memory
        Gpu(1, 1)

    def no_driver(_):
        raise CudaError("CUDA driver version is insufficient")

    cupy.cuda.runtime.getDeviceProperties = no_driver
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(InputError, match="no usable GPU: CUDA driver version"):
        Gpu(1, 1)
