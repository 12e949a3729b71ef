"""What a driver reports of a device, as CUDA's deviceQuery and profilers print it, from the registry."""

from typing import Any

from .gpu import Gpu
from .occupancy import LIMITS, MAX_THREADS, REGISTERS_PER_SM, WARP_THREADS

DOUBLE_DATA_RATE = 2
"""Transfers in one clock of the memory, by which drivers report its rate: 11 Gbit/s on a pin are 5500 MHz."""


def device_attributes(gpu: Gpu) -> dict[str, Any]:
    """Attributes beside the specification, each name ending in its unit; None where not known.

    Limits of an SM and a block follow from the compute capability (`LIMITS`). ``fp16_unpacked_tflops`` is the rate of
    half-precision instructions on one value each, as NVIDIA's visual profiler states it: half that of pairs
    (``fp16_tflops``).
    """
    limits, nvidia = LIMITS.get(gpu.compute_capability), gpu.vendor == "nvidia"
    per_pin = gpu.dram_gbs * 8 / gpu.memory_bus_bits if gpu.memory_bus_bits else None
    return {
        "memory_clock_mhz": per_pin and per_pin * 1e3 / DOUBLE_DATA_RATE,
        "fp16_unpacked_tflops": gpu.fp16_tflops / 2,
        "warp_threads": WARP_THREADS if nvidia else None,
        "threads_per_block": MAX_THREADS if nvidia else None,
        "shared_per_block_bytes": limits and limits.optin_bytes,
        "warps_per_sm": limits and limits.warps,
        "threads_per_sm": limits and limits.warps * WARP_THREADS,
        "blocks_per_sm": limits and limits.blocks,
        "registers_per_sm": limits and REGISTERS_PER_SM,
    }
