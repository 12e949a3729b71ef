"""A CPU that was measured as a device, as a row like a GPU's: the reference device's own data sheet."""

from collections.abc import Mapping
from typing import Any

from .errors import InputError
from .gpu import Gpu

LANES = 16
"""fp32 lanes of one core, nominal: the clock is then chosen so that cores · lanes · 2 · clock is the measured peak."""


def cpu_device(name: str, properties: Mapping[str, Any]) -> Gpu:
    """A `Gpu` row from measured properties: ``threads_used``, ``gemm_gflops`` (2 flops per multiply-add), ``copy_gbs``,

    ``last_level_cache_bytes``. Cores stand for SMs. Raises `InputError` where a figure is missing or not positive.
    """
    try:
        cores = int(properties["threads_used"])
        gflops, copy_gbs = float(properties["gemm_gflops"]), float(properties["copy_gbs"])
        cache = int(properties["last_level_cache_bytes"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"device {name!r}: its properties lack {error}; collect again with `seer collect`"
        ) from None
    if min(cores, gflops, copy_gbs) <= 0:
        raise InputError(
            f"device {name!r}: a measured figure is not positive; collect again with `seer collect`"
        )
    return Gpu(
        name=name,
        aliases=(),
        vendor="cpu",
        architecture="cpu",
        compute_capability=0.0,
        sms=cores,
        cores_per_sm=LANES,
        boost_mhz=gflops * 1e3 / (cores * LANES * 2),
        fp64_tflops=gflops / 2e3,
        fp16_tflops=0.0,
        fp16_tensor_tflops=0.0,
        bf16_tensor_tflops=0.0,
        tf32_tflops=0.0,
        fp32_matrix_tflops=0.0,
        dram_gbs=copy_gbs,
        l2_bytes=max(cache, 1),
        shared_per_sm_bytes=32 * 1024,
        memory_bytes=0,
        pcie_gbs=0.0,
        source="measured with the run that this device's rows come from",
    )
