"""A GPU described to cuDNN instead of present: the JSON of a device-properties descriptor (cuDNN ≥ 9.8)."""

import json

from surrogate.collect.graph.attributes import Attribute, Descriptor
from surrogate.collect.graph.backend import Handle, Scope
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.occupancy import LIMITS, MAX_THREADS, REGISTERS_PER_SM, WARP_THREADS

BLOCK_SHARED_BYTES = 48 * 1024
"""Shared memory of a block that has not opted in to more."""
DRIVER_VERSION = 13000
"""CUDA version of the driver that is supposed, as cuDriverGetVersion tells it; the ranking does not show it."""


def properties_json(gpu: Gpu) -> str:
    """The JSON that cuDNN asks for, from the GPU's specification.

    The memory clock stands in for the bandwidth of a 5,120-bit interface at two transfers a clock (the
    registry holds the bandwidth alone). Raises `InputError` for a GPU that is not NVIDIA's, or too old.
    """
    if gpu.vendor != "nvidia" or gpu.compute_capability not in LIMITS:
        raise InputError(
            f"GPU {gpu.name} cannot be described to cuDNN 9;"
            f" NVIDIA GPUs of compute capability {', '.join(map(str, LIMITS))} can"
        )
    limits = LIMITS[gpu.compute_capability]
    memory_clock_khz = gpu.dram_gbs * 1e9 / (2 * 5120 / 8) / 1e3
    return json.dumps(
        {
            "deviceVer": round(gpu.compute_capability * 100),
            "multiProcessorCount": gpu.sms,
            "warpSize": WARP_THREADS,
            "maxSharedMemoryPerBlock": BLOCK_SHARED_BYTES,
            "maxSharedMemoryPerBlockOptin": int(limits.optin_bytes),
            "reservedSharedMemoryPerBlock": int(limits.reserved_bytes),
            "maxRegistersPerSM": REGISTERS_PER_SM,
            "maxCtasPerSM": int(limits.blocks),
            "maxThreadsPerBlock": MAX_THREADS,
            "maxThreadsPerSM": int(limits.warps) * WARP_THREADS,
            "regsPerBlock": REGISTERS_PER_SM,
            "totalGlobalMem": gpu.memory_bytes,
            "smClockRateKHz": round(gpu.boost_mhz * 1e3),
            "memClockRateKHz": round(memory_clock_khz),
            "l2CacheSize": gpu.l2_bytes,
            "maxBlockSize": [1024, 1024, 64],
            "maxGridSize": [2**31 - 1, 65535, 65535],
            "supportCoopLaunch": int(gpu.compute_capability >= 6.0),
            "pciDeviceId": 0,
            "isTccDriver": 0,
            "cudaDeviceId": 0,
            "driverVer": DRIVER_VERSION,
            "deviceName": gpu.aliases[0] if gpu.aliases else gpu.name,
        }
    )


def described_gpu(scope: Scope, gpu: Gpu) -> Handle:
    """The finalised descriptor of ``gpu``; `CudnnError` where this cuDNN cannot describe devices."""
    made = scope.make(Descriptor.DEVICE_PROPERTIES)
    scope.set_text(made, Attribute.DEVICE_JSON, properties_json(gpu))
    scope.finalize(made, f"the description of {gpu.name}")
    return made
