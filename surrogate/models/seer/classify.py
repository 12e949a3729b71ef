"""The class of a kernel: what bounds its time. Source: SEER (PACT 2021), see `kernel_class`."""

import numpy as np

from surrogate.features.elementwise import Number, where

CLASSES = ("compute-bound", "memory-bound", "under-utilised")
COMPUTE, MEMORY, UNDER_UTILISED = range(3)
HIGH_PCT = 80.0
"""Utilisation from which a unit bounds the kernel: level 8 of nvprof's 0 … 10."""


def kernel_class(fp32_utilization_pct: Number, dram_utilization_pct: Number) -> Number:
    """0 compute-bound where FP32 utilisation is at least 80 %; else 1 memory-bound where DRAM's is; else 2."""
    return where(
        fp32_utilization_pct >= HIGH_PCT,
        COMPUTE,
        where(dram_utilization_pct >= HIGH_PCT, MEMORY, UNDER_UTILISED),
    )


def roofline_class(compute_us: np.ndarray, memory_us: np.ndarray, waves: np.ndarray) -> np.ndarray:
    """The class where nothing was counted, (rows,): 2 below one wave, else the longer of the two roofline times."""
    return np.where(waves < 1, UNDER_UTILISED, np.where(compute_us >= memory_us, COMPUTE, MEMORY))


def shares(classes: np.ndarray) -> dict[str, float]:
    """Share of each class among the rows that have one (−1 has none), as SEER's network analysis reports it."""
    known = classes[classes >= 0]
    return {name: float((known == code).mean()) if len(known) else 0.0 for code, name in enumerate(CLASSES)}
