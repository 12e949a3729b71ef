"""Half-precision times from a GPU's specification alone, where neither its convolutions nor its sweeps were measured.

One law, fitted to whole networks on `Specification.gpus`, stands in for the trees: those saw cuDNN 7's kernels on Volta
and Turing, and today's are up to twice as fast.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from surrogate import bundled
from surrogate.features.gpu import Gpu
from surrogate.features.problem import HALF
from surrogate.features.terms.tensor_core import TensorCoreLaw
from surrogate.models.plain import from_plain
from surrogate.prediction.engine import Engine

FILE = "tensor_cores.json"


@dataclass(frozen=True, slots=True)
class Specification:
    """The law, where its measurements come from, and how far off it was on GPUs and families of networks held out.

    ``half_width`` of the 90 % interval of one kernel in log time; ``median_ape`` and ``factor_90`` of whole networks.
    """

    law: TensorCoreLaw
    gpus: tuple[str, ...]
    origin: str
    half_width: float
    median_ape: float
    factor_90: float

    @property
    def note(self) -> str:
        """One line on what an answer from the specification is worth."""
        return (
            "half precision from the specification: whole networks on a GPU left out were off by"
            f" {100 * self.median_ape:.0f} % in the median, nine in ten by less than a factor of {self.factor_90:.2f}"
        )


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
    """Times of the law, alike for all candidates: which of them a release calls so does not matter."""

    law: TensorCoreLaw

    def one(self, problem: object, wanted: Sequence[int]) -> tuple[list[float], list[float]]:
        """As `Engine.one`."""
        terms = self.formula.problem(problem)
        time_us = self.law.convolution_us(terms.sized, self.device, self.setting.columns()["dtype"])
        return [time_us] * len(wanted), [self.own(terms, candidate)[1] for candidate in wanted]

    def many(
        self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`."""
        terms = self.formula.problem(self.setting.problems(sizes))
        time_us = self.law.convolution_us(terms.sized, self.device, self.setting.columns()["dtype"])
        workspace = np.zeros(len(index))
        for candidate in np.unique(index).tolist():
            rows = index == candidate
            workspace[rows] = (self.own(terms, candidate)[1] + np.zeros(len(sizes)))[problem[rows]]
        return np.asarray(time_us)[problem], workspace
