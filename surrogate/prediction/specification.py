"""Times from a GPU's specification: laws of kernels where neither a GPU nor its architecture was measured.

The bundles saw cuDNN 7's half-precision kernels on Volta and Turing, and today's are up to twice as fast; of TF32's
they saw none. Laws that were fitted to whole networks on newer GPUs stand in for the trees there. Matrix products of
AMD's libraries were measured on two boards, from which trees tell little of a third: a law of output tiles stands in.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import numpy as np

from surrogate import bundled
from surrogate.bundle.bundle import Part
from surrogate.features.gpu import Gpu
from surrogate.features.problem import HALF
from surrogate.features.terms.tensor_core import TensorCoreLaw
from surrogate.features.terms.tiled_product import TiledProductLaw
from surrogate.models.plain import from_plain
from surrogate.prediction.engine import Context, Engine, Setting
from surrogate.uncertainty.intervals import LeftOut, UnseenGpu

FILE = "tensor_cores.json"
HALVES, TF32 = "half", "tf32"
"""Types of operands that laws are kept by."""
PRODUCTS = "tiled_products.json"


@dataclass(frozen=True, slots=True)
class Evidence:
    """How far off a law was on the GPUs that it was judged on, as `UnseenGpu.by_kind`."""

    by_kind: Mapping[str, LeftOut]

    def instead_of(self, part: Part) -> Part:
        """The part without what its training data says of support and of GPUs never measured."""
        support = replace(part.support, exact={}, general={})
        return replace(part, support=support, unseen_gpu=UnseenGpu(self.by_kind))


@dataclass(frozen=True, slots=True)
class Specification(Evidence):
    """The law of an element type's kernels; it was judged on whole networks that it was not fitted to."""

    law: TensorCoreLaw


@dataclass(frozen=True, slots=True)
class Products(Evidence):
    """``laws`` of AMD's matrix products: start of an architecture's name → its boards' without matrix cores for fp32,
    ``matrix_cores`` of those with them. ``fitted_on`` are the boards, by their registry names."""

    fitted_on: tuple[str, ...]
    laws: Mapping[str, TiledProductLaw]
    matrix_cores: TiledProductLaw

    def law(self, gpu: Gpu) -> TiledProductLaw:
        """That of the GPU's kind; of an architecture that none is of, the matrix cores'."""
        own = (law for start, law in self.laws.items() if gpu.architecture.startswith(start))
        return self.matrix_cores if gpu.fp32_matrix_tflops else next(own, self.matrix_cores)


@cache
def shipped_specifications() -> dict[str, Specification]:
    """What ships with the package: `HALVES` and `TF32` → the law."""
    kinds = json.loads((bundled.FOLDER / FILE).read_bytes())
    return {kind: from_plain(Specification, kinds[kind]) for kind in (HALVES, TF32)}


def specification_of(gpu: Gpu, dtype: str, math: str = "default") -> Specification | None:
    """The law for kernels of a type on one of NVIDIA's GPUs since Ampere; None for types without tensor cores there."""
    if gpu.vendor != "nvidia" or not gpu.bf16_tensor_tflops or math == "fma":
        return None
    kind = HALVES if dtype in HALF else TF32 if (dtype, math) == ("fp32", "default") and gpu.tf32_tflops else ""
    return shipped_specifications()[kind] if kind else None


@cache
def shipped_products() -> Products:
    """What ships with the package."""
    return from_plain(Products, json.loads((bundled.FOLDER / PRODUCTS).read_bytes()))


def products_of(setting: Setting, gpu: Gpu, measured: Collection[str]) -> Products | None:
    """The laws for a setting on one of AMD's GPUs, where of those just the laws' own were ``measured``; else None."""
    is_tiled = gpu.vendor == "amd" and {*setting.values[:1]} & {*setting.family.tiled_kinds}
    return shipped_products() if is_tiled and measured and {*measured} <= {*shipped_products().fitted_on} else None


@dataclass(frozen=True, slots=True)
class LawEngine(Engine):
    """Times of a law, alike for all candidates; none needs a workspace. ``law`` gives (problems,) µs of problems."""

    law: Callable[[Any], np.ndarray]

    @classmethod
    def of_convolutions(cls, context: Context, law: TensorCoreLaw) -> Self:
        """Of convolutions in the setting's element type."""
        dtype = context.setting.named["dtype"]
        return cls(
            context, lambda problems: law.convolution_us(context.formula.problem(problems).sized, context.device, dtype)
        )

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`."""
        return self.law(self.context.setting.problem(sizes.T))[problem], np.zeros(len(index))
