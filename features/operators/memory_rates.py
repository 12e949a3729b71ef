"""The rates that the traffic models of the embedding bag need of a GPU, L2 included."""

from dataclasses import dataclass

from ..gpu import Gpu

L2_BYTES_PER_SM_CLOCK = 23.6
"""V100: 2,888 GB/s measured (Lin et al., HiPC 2022) / 80 SMs / 1,530 MHz; stands in where L2's rate is not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRates:
    """DRAM and L2 bandwidth in GB/s, fp32 peak in GFLOP/s (2 per multiply-add), SMs, L2 size in bytes."""

    dram_gbs: float
    l2_gbs: float
    peak_gflops: float
    sms: int
    l2_bytes: int

    @classmethod
    def of(cls, gpu: Gpu) -> "MemoryRates":
        """A GPU's measured figures where the registry has them, else its specification."""
        measured = gpu.measured
        estimated_l2_gbs = gpu.sms * gpu.boost_mhz * L2_BYTES_PER_SM_CLOCK / 1e3
        return cls(
            dram_gbs=measured.get("dram_gbs", gpu.dram_gbs),
            l2_gbs=measured.get("l2_gbs", estimated_l2_gbs),
            peak_gflops=measured.get("fp32_gflops", gpu.fp32_tflops * 1e3),
            sms=gpu.sms,
            l2_bytes=gpu.l2_bytes,
        )
