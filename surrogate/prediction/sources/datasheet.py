"""Times from a GPU's datasheet: analytical models of kernels, for GPUs of unmeasured architectures.

The bundles hold half-precision kernels of cuDNN 7 on Volta and Turing; today's kernels are up to twice as fast. They
hold no TF32 kernels. On newer GPUs, analytical models that were fitted to whole networks replace the trees. Matrix
products of AMD's libraries were measured on four boards, which are too few to predict a fifth with trees. A model of
output tiles replaces them.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate import bundled
from surrogate.bundle.bundle import FamilyModel
from surrogate.features import BANDWIDTH_FIELDS, HALF, PRODUCTS, Gpu, TensorCoreModel, tiled_product_us
from surrogate.features.families import AnyProblem, NetworkProblem, family_of
from surrogate.models.json_types import from_json_types
from surrogate.prediction.results import DATASHEET, NOTES
from surrogate.prediction.sources.source import Context, QuerySetting, Source, Times
from surrogate.uncertainty.intervals import HeldOutGpuErrors, UnmeasuredGpuErrors

if TYPE_CHECKING:
    from surrogate.prediction.ranking import Ranker
    from surrogate.prediction.results import KernelTime

FILE = "tensor_cores.json"
HALVES, TF32 = "half", "tf32"
"""Types of operands that have an analytical model."""
SINGLE, SUM, STEP = "", "sum", "step"
"""Keys of the errors of single kernels, of sums of the kernels of networks, and of training steps."""

SUSTAINED = 0.94
"""Share of the tensor peak that long products reach if nothing else limits them.

Source: fp8 products on H20 in zksainx/pipeweave's table; the vendor limits this GPU's tensor units. The median of the
products over 4096 × 4096 × 2048 is 0.93, the maximum 0.95.
"""
GEFORCE_FLOP_PER_CLOCK = 520.0
"""Maximum of half-precision operations per clock on an SM of a GeForce board; the vendor limits its tensor units.

All other boards do more.
"""
GEFORCE_SUSTAINED = 1.05
"""Share of the tensor peak that GeForce boards reach; they run above the datasheet clock.

Source: timm's transformers on RTX 3090 and 4090, half of their families.
"""

GRADIENT_HALF_WIDTHS = {"bwd_data": (0.43, 5.2), "bwd_filter": (1.9, 2.3)}
"""Direction → half widths in log time of a gradient that follows its forward pass: filters of stride 1, and strided.

They are the 90 % quantiles over 79 gradients in half precision on a V100, each direction held out (c3sr/scope). Without
the forward pass they are 1.4, 5.8, 2.6 and 2.8. That release ran strided data gradients without tensor cores.
"""

KernelFunction = Callable[[Sequence[AnyProblem]], "Sequence[KernelTime]"]
"""A function of problems that returns the time of each in a busy stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutErrors:
    """The errors of an analytical model on held-out GPUs, in the form of `UnmeasuredGpuErrors.by_group`.

    ``judged_on`` are the times with these errors, in words.
    """

    by_kind: Mapping[str, HeldOutGpuErrors]
    judged_on: str = ""

    @property
    def note(self) -> str:
        """One line on the expected errors of single kernels."""
        return UnmeasuredGpuErrors(self.by_kind).note(SINGLE, is_described=False, judged_on=self.judged_on)

    def instead_of(self, family_model: FamilyModel) -> FamilyModel:
        """Return the family model with these errors for unmeasured GPUs, and without measured support."""
        support = replace(family_model.support, exact={}, general={})
        return replace(family_model, support=support, unmeasured_gpu=UnmeasuredGpuErrors(self.by_kind))


@dataclass(frozen=True, slots=True)
class DatasheetModels(HeldOutErrors):
    """The analytical model of an element type's kernels.

    Errors of `SUM` were measured on held-out networks. In half precision, single kernels were measured on older GPUs
    only, where the errors of `SINGLE` hold up to one factor per GPU and layout. They, start and tile are TF32's.
    """

    model: TensorCoreModel

    def times_us(self, context: Context, problems: Any) -> np.ndarray:
        """Return the times of convolutions in the setting's element type in µs, (problems,)."""
        sizes = context.formula.problem(problems).problem
        return self.model.convolution_us(sizes, context.device, context.setting.by_name["dtype"])


@dataclass(frozen=True, slots=True)
class ProductModels(HeldOutErrors):
    """The analytical models of AMD's matrix products. ``fitted_on`` are the registry names of the measured boards."""

    fitted_on: tuple[str, ...]

    def times_us(self, context: Context, problems: Any) -> np.ndarray:
        """Return the times of matrix products in µs, (problems,)."""
        return tiled_product_us(problems, context.device)


@cache
def shipped_datasheet_models() -> dict[str, DatasheetModels]:
    """Return the shipped models: `HALVES` and `TF32` → model."""
    kinds = json.loads((bundled.FOLDER / FILE).read_bytes())
    return {kind: from_json_types(DatasheetModels, {**each, "model": each["law"]}) for kind, each in kinds.items()}


def datasheet_models(gpu: Gpu, dtype: str, math: str = "default") -> DatasheetModels | None:
    """Return the model of a type's kernels on an NVIDIA GPU, or None without tensor cores for the type."""
    units = gpu.fp16_tensor_tflops if dtype == "fp16" else gpu.bf16_tensor_tflops
    if gpu.vendor != "nvidia" or not units or math == "fma":
        return None
    kind = HALVES if dtype in HALF else TF32 if (dtype, math) == ("fp32", "default") and gpu.tf32_tflops else ""
    return shipped_datasheet_models()[kind] if kind else None


def common_share(problem: NetworkProblem, gpu: Gpu, source: str, mechanism: str) -> float:
    """Return the share of a single kernel's half width that remains in a sum of many kernels.

    It is 1 if the time from ``source`` is not from a model with errors of sums.
    """
    streams = problem.kind in BANDWIDTH_FIELDS and problem.dtype in HALF
    convolves = mechanism and mechanism == family_of(problem).tensor_core_mechanism
    models = datasheet_models(gpu, problem.dtype, "default" if streams else problem.math)
    if source != DATASHEET or models is None or SUM not in models.by_kind or not (streams or convolves):
        return 1.0
    return models.by_kind[SUM].half_width / models.by_kind[SINGLE].half_width


@cache
def shipped_product_models() -> ProductModels:
    """Return the shipped models of matrix products."""
    return from_json_types(ProductModels, PRODUCTS)


def product_models(setting: QuerySetting, gpu: Gpu, measured: Collection[str]) -> ProductModels | None:
    """Return the models for a setting on an AMD GPU if only their own boards were ``measured``, else None."""
    is_tiled = gpu.vendor == "amd" and {*setting.values[:1]} & {*setting.family.tiled_kinds}
    is_covered = is_tiled and measured and {*measured} <= {*shipped_product_models().fitted_on}
    return shipped_product_models() if is_covered else None


def sustained_share(gpu: Gpu) -> float:
    """Return the share of the tensor peak that long products reach; `SUSTAINED` and the board's power limit it."""
    peak_watts = gpu.tensor_pj_per_flop * gpu.bf16_tensor_tflops
    if peak_watts:
        return min(SUSTAINED, gpu.board_watts / peak_watts)
    flop_per_clock = gpu.bf16_tensor_tflops * 1e6 / (gpu.sms * gpu.boost_mhz)
    return GEFORCE_SUSTAINED if gpu.vendor == "nvidia" and 0 < flop_per_clock <= GEFORCE_FLOP_PER_CLOCK else SUSTAINED


def above_peak_note(board: Gpu) -> str:
    """Return a note if products of the board may be faster than its datasheet peak, else ""."""
    share = sustained_share(board)
    return NOTES["above_peak"].format(100 * (share - 1), board.name) if share > 1 else ""


@dataclass(frozen=True, slots=True)
class AnalyticalSource(Source):
    """Times of analytical ``models``, equal for all candidates, without workspaces.

    If the GPU or a similar one was measured in the ``forward`` direction only, the gradient's time is multiplied by the
    forward pass's time / its analytical time. The interval contains the time without this factor.
    """

    models: DatasheetModels | ProductModels
    forward: "Ranker | None" = None

    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.times`."""
        problems = self.context.setting.problem(sizes.T)
        times_us, deviation = self.models.times_us(self.context, problems), None
        if self.forward is not None:
            passes = self.forward.setting.problem(sizes.T)
            factor = self.forward.fastest_us(sizes) / self.models.times_us(self.forward.source.context, passes)
            factor = np.where(np.isfinite(factor), factor, 1.0)
            times_us = times_us * factor
            single, strided = GRADIENT_HALF_WIDTHS[self.context.setting.by_name["direction"]]
            half_width = np.where(problems.stride_h * problems.stride_w > 1, strided, single)
            base = self.models.by_kind[SINGLE].half_width
            deviation = (np.maximum(half_width, abs(np.log(factor))) / base).clip(1.0)[problem_of_row]
        return Times(times_us[problem_of_row], np.zeros(len(candidate_of_row)), deviation=deviation)


@dataclass(frozen=True, slots=True)
class KernelSource(Source):
    """The times that networks and traces add up, for an operator without candidates."""

    kernel_times: KernelFunction

    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.times`."""
        kernels = self.kernel_times([self.context.setting.problem(row) for row in sizes.tolist()])
        times = np.array([(each.time_us, each.lower_us, each.upper_us) for each in kernels]).reshape(-1, 3)
        time_us, lower_us, upper_us = times[problem_of_row].T
        sources = np.array([each.source for each in kernels], dtype=object)[problem_of_row]
        return Times(time_us, np.zeros(len(time_us)), answers=(lower_us, upper_us, sources))


@dataclass(frozen=True, slots=True)
class NotBelow(Source):
    """Times of ``source``, at least the shortest time of the ``candidates`` (positions) of ``other``."""

    source: Source
    other: Source
    candidates: np.ndarray

    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.times`."""
        times = self.source.times(sizes, problem_of_row, candidate_of_row)
        shape = len(sizes), len(self.candidates)
        every_problem, every_candidate = (positions.ravel() for positions in np.indices(shape))
        others_us = self.other.times(sizes, every_problem, self.candidates[every_candidate]).time_us
        shortest_us = others_us.reshape(shape).min(axis=1)
        return times._replace(time_us=np.maximum(times.time_us, shortest_us[problem_of_row]))
