"""Times from a GPU's datasheet: analytical models of kernels, for GPUs whose architecture was never measured.

The bundles hold cuDNN 7's half-precision kernels on Volta and Turing, which today's kernels beat by up to a factor of
two, and no TF32 kernels. Analytical models that were fitted to whole networks on newer GPUs replace the trees there.
Matrix products of AMD's libraries were measured on two boards, which is too few for trees on a third: a model of output
tiles replaces them.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import numpy as np

from surrogate import bundled
from surrogate.bundle.bundle import FamilyModel
from surrogate.features.analytical import TensorCoreModel, TiledProductModel
from surrogate.features.gpu import Gpu
from surrogate.features.problem import HALF
from surrogate.models.json_types import from_json_types
from surrogate.prediction.sources.source import Context, Setting, Source, Times
from surrogate.uncertainty.intervals import HeldOutGpuErrors, UnseenGpu

FILE = "tensor_cores.json"
HALVES, TF32 = "half", "tf32"
"""Types of operands that laws are kept by."""
PRODUCTS = "tiled_products.json"


@dataclass(frozen=True, slots=True)
class HeldOutErrors:
    """How far off a law was on the GPUs that it was judged on, as `UnseenGpu.by_kind`."""

    by_kind: Mapping[str, HeldOutGpuErrors]

    def instead_of(self, part: FamilyModel) -> FamilyModel:
        """The part without what its training data says of support and of GPUs never measured."""
        support = replace(part.support, exact={}, general={})
        return replace(part, support=support, unseen_gpu=UnseenGpu(self.by_kind))


@dataclass(frozen=True, slots=True)
class DatasheetModels(HeldOutErrors):
    """The law of an element type's kernels; it was judged on whole networks that it was not fitted to."""

    model: TensorCoreModel


@dataclass(frozen=True, slots=True)
class ProductModels(HeldOutErrors):
    """``boards`` of AMD's matrix products: start of an architecture's name → its boards' without matrix cores for fp32,
    ``matrix_cores`` of those with them. ``fitted_on`` are the boards, by their registry names."""

    fitted_on: tuple[str, ...]
    boards: Mapping[str, TiledProductModel]
    matrix_cores: TiledProductModel

    def model_of(self, gpu: Gpu) -> TiledProductModel:
        """That of the GPU's kind; of an architecture that none is of, the matrix cores'."""
        own = (model for start, model in self.boards.items() if gpu.architecture.startswith(start))
        return self.matrix_cores if gpu.fp32_matrix_tflops else next(own, self.matrix_cores)


@cache
def shipped_datasheet_models() -> dict[str, DatasheetModels]:
    """What ships with the package: `HALVES` and `TF32` → the law."""
    kinds = json.loads((bundled.FOLDER / FILE).read_bytes())
    return {
        kind: from_json_types(DatasheetModels, {**kinds[kind], "model": kinds[kind]["law"]}) for kind in (HALVES, TF32)
    }


def datasheet_models(gpu: Gpu, dtype: str, math: str = "default") -> DatasheetModels | None:
    """The law for kernels of a type on one of NVIDIA's GPUs since Ampere; None for types without tensor cores there."""
    if gpu.vendor != "nvidia" or not gpu.bf16_tensor_tflops or math == "fma":
        return None
    kind = HALVES if dtype in HALF else TF32 if (dtype, math) == ("fp32", "default") and gpu.tf32_tflops else ""
    return shipped_datasheet_models()[kind] if kind else None


@cache
def shipped_product_models() -> ProductModels:
    """What ships with the package."""
    content = json.loads((bundled.FOLDER / PRODUCTS).read_bytes())
    return from_json_types(ProductModels, {**content, "boards": content["laws"]})


def product_models(setting: Setting, gpu: Gpu, measured: Collection[str]) -> ProductModels | None:
    """The laws for a setting on one of AMD's GPUs, where of those just the laws' own were ``measured``; else None."""
    is_tiled = gpu.vendor == "amd" and {*setting.values[:1]} & {*setting.family.tiled_kinds}
    return (
        shipped_product_models()
        if is_tiled and measured and {*measured} <= {*shipped_product_models().fitted_on}
        else None
    )


@dataclass(frozen=True, slots=True)
class AnalyticalSource(Source):
    """Times of an analytical model, equal for all candidates, which need no workspace.

    ``model`` gives (problems,) µs of problems.
    """

    model: Callable[[Any], np.ndarray]

    @classmethod
    def of_convolutions(cls, context: Context, model: TensorCoreModel) -> Self:
        """Return the source of convolutions in the setting's element type."""
        dtype = context.setting.by_name["dtype"]
        return cls(
            context,
            lambda problems: model.convolution_us(context.formula.problem(problems).sized, context.device, dtype),
        )

    @classmethod
    def of_products(cls, context: Context, products: ProductModels) -> Self:
        """Return the source of matrix products on one of AMD's GPUs."""
        device = context.device
        model = products.model_of(device)
        return cls(context, lambda problems: model.product_us(problems, device))

    def times(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> Times:
        """As `Source.times`."""
        return Times(self.model(self.context.setting.problem(sizes.T))[problem], np.zeros(len(index)))


@dataclass(frozen=True, slots=True)
class Tf32Source(Source):
    """fp32 with TF32 allowed, which was never measured: candidates with tensor-core kernels take the shorter time.

    ``plain`` gives times by multiply-adds and ``tensor`` times at TF32's peak. ``able`` (candidates,) marks candidates
    that have both kinds of kernels, ``never`` (candidates,) those whose library was never measured with TF32.
    """

    plain: Source
    tensor: Source
    able: np.ndarray
    never: np.ndarray

    def times(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> Times:
        """As `Source.times`."""
        plain = self.plain.times(sizes, problem, index)
        tensor_us = self.tensor.times(sizes, problem, index).time_us
        faster_us = np.where(self.able[index], np.minimum(plain.time_us, tensor_us), plain.time_us)
        return plain._replace(time_us=np.where(self.never[index], faster_us, tensor_us))
