"""Times from a GPU's specification: one law of half-precision kernels where neither a GPU nor its sweeps were measured.

The bundles saw cuDNN 7's half-precision kernels on Volta and Turing, and today's are up to twice as fast. A law that
was fitted to whole networks on newer GPUs stands in for the trees there.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from math import exp

import numpy as np

from surrogate import bundled
from surrogate.bundle.bundle import Part
from surrogate.features.gpu import Gpu
from surrogate.features.problem import HALF
from surrogate.features.terms.tensor_core import TensorCoreLaw
from surrogate.models.plain import from_plain
from surrogate.prediction.engine import Engine
from surrogate.uncertainty.intervals import ALL, UnseenGpu, Widths

FILE = "tensor_cores.json"


@dataclass(frozen=True, slots=True)
class Specification:
    """The law, the GPUs that it was fitted on, and how far off whole networks were on one of them left out, of families
    that it was not fitted to: the median error, and the half width in log time that nine in ten keep within."""

    law: TensorCoreLaw
    gpus: int
    median_ape: float
    half_width: float

    def instead_of(self, part: Part) -> Part:
        """The part without what its training data says of support and widths."""
        support = replace(part.support, exact={}, general={})
        widths = Widths({ALL: self.half_width})
        unseen = UnseenGpu(
            factors={"": 1.0}, own_share=1.0, gpus=self.gpus, median_ape=self.median_ape, factor_90=exp(self.half_width)
        )
        return replace(part, support=support, widths=widths, unseen_gpu=unseen)


@cache
def shipped_specification() -> Specification:
    """What ships with the package."""
    return from_plain(Specification, json.loads((bundled.FOLDER / FILE).read_bytes()))


def specification_of(gpu: Gpu, dtype: str) -> Specification | None:
    """The law for kernels of a type on a GPU; None but for half precision on NVIDIA's GPUs since Ampere."""
    fits = dtype in HALF and gpu.vendor == "nvidia" and gpu.bf16_tensor_tflops > 0
    return shipped_specification() if fits else None


@dataclass(frozen=True, slots=True)
class TensorCoreEngine(Engine):
    """Times of the law, alike for all candidates; none needs a workspace."""

    law: TensorCoreLaw

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`."""
        setting, device, _, formula, _ = self.context
        sized = formula.problem(setting.problem(sizes.T)).sized
        time_us = self.law.convolution_us(sized, device, setting.named["dtype"])
        return time_us[problem], np.zeros(len(index))
