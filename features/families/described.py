"""`DescribedFamily`: the family of a user's own kernel, made from its `Description`.

Its candidates are configurations. The columns of a candidate are its parameters and the results of the description's
formulas for the launch. On an unregistered GPU, columns that depend on the GPU's figures are NaN.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from ..description import UNSIZED, Description
from ..elementwise import Number, checked_int
from ..errors import InputError
from ..family import Family, Formula, ProblemTerms
from ..gpu import Gpu
from ..kernels import (
    LIMITS,
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS,
    REGISTERS_PER_SM,
    max_shared_bytes,
    resident,
    sm_limits,
)
from ..problem import Size, read_sizes, setting as setting_value
from ..roofline import MACHINE_NAMES, machine, machine_features, peak_flops_table, waves_of

MAX_LAUNCHED_THREADS = 4096.0
"""An upper limit for threads of a block in the occupancy formula; no device runs that many."""
WORK_UNIT = 1e6
"""If no formula gives the work, the time in µs is proportional to the product of the sizes divided by this."""
DESCRIBED_WORK_NAMES = ("log2_flops", "log2_dram_bytes", "log2_roofline_us", "log2_intensity")
"""Columns from the formulas of a problem, besides its sizes. The product of the sizes replaces work without a
formula."""
ORDINARY_TFLOPS, ORDINARY_GBS = 15.0, 600.0
"""Figures of an ordinary GPU. If no formula gives the work, times scale by the geometric mean of both."""
RULED_OUT = "ruled out by a condition"
OVER_GPU_LIMIT = "cannot run: {name} is above {maximum:,}, the most on {gpu}"
LAUNCH_TERMS = ("log2_blocks", "log2_waves", "last_wave", "whole_waves", "blocks_per_sm", "log2_own_roofline")
"""Columns from the formulas of a launch, besides the parameters of a configuration."""


@dataclass(frozen=True, slots=True)
class DescribedProblem:
    """One problem of a described kernel, or many: ``values`` of the sizes (numbers or int64 arrays) and
    ``settings``."""

    family: "DescribedFamily"
    values: tuple[Number, ...]
    settings: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kernel's name."""
        return self.family.name

    @property
    def sizes(self) -> dict[str, Number]:
        """Size → its value."""
        return dict(zip(self.family.size_names, self.values, strict=True))

    @property
    def dtype(self) -> str:
        """The setting ``dtype``; empty if the kernel has none."""
        return dict(zip(self.family.setting_names, self.settings, strict=True)).get("dtype", "")

    def fallbacks(self) -> tuple["DescribedProblem", ...]:
        """Return only the problem itself: other kernels' measurements cannot replace its own."""
        return (self,)

    def to_dict(self) -> dict[str, object]:
        """Return kind, sizes and settings as a dictionary."""
        return {"kind": self.kind, **self.sizes, **dict(zip(self.family.setting_names, self.settings, strict=True))}

    def __str__(self) -> str:
        """Return the problem's text, as in ``matmul:m64n4096``, or with equals signs if a name has digits."""
        sizes = self.sizes if self.family.description.sizes else {}
        has_digits = any(char.isdigit() for name in sizes for char in name)
        words = [f"{name}={size}" if has_digits else f"{name}{size}" for name, size in sizes.items()]
        return f"{self.kind}:{(',' if has_digits else '').join(words)}" if words else self.kind


class DescribedFamily(Family[DescribedProblem]):
    """The family of one described kernel."""

    half_types_share_algorithms = False
    has_call_cost = False
    distance_units: Mapping[str, float] = MappingProxyType({})

    def __init__(self, description: Description) -> None:
        self.description = description
        self.name = description.name
        self.kinds = {description.name: DescribedProblem}
        minimum = {"minimum": 0, "counts": False}
        self.sizes = tuple(Size(f"a size of {self.name}", name=name, **minimum) for name in description.sizes) or (
            Size("1: the kernel has one problem", name=UNSIZED, default=1, **minimum),
        )
        self.settings = dict(description.settings)
        self.setting_defaults = {name: values[0] if values else "" for name, values in description.settings.items()}
        self.setting_meanings = dict.fromkeys(description.settings, f"a setting of {self.name}")
        self.setting_columns = tuple(f"setting_{name}" for name in description.settings)
        self.batch = description.batch
        self.strata = ()
        self.candidate_key = ("algorithm",)
        self.parameter_names = tuple(description.parameters)
        self.dimension_names = tuple(f"log2_{size.name}" for size in self.sizes)
        self.problem_names = (*self.dimension_names, *DESCRIBED_WORK_NAMES)
        self.parameter_columns = tuple(f"parameter_{name}" for name in description.parameters)
        self.candidate_names = (*self.parameter_columns, *LAUNCH_TERMS)
        self.own_roofline = "log2_own_roofline"
        sized = {*description.sizes}
        self._problem_formulas = {name: f for name, f in description.formulas.items() if f.names <= sized}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DescribedFamily) and self.description == other.description

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def example(self) -> str:
        """An example of a problem's text."""
        return str(DescribedProblem(self, (8,) * len(self.sizes)))

    def full_text(self, problem: str) -> str:
        """See `Family.full_text`: a text without a kernel's name means this kernel."""
        return problem if ":" in problem else f"{self.name}:{problem if problem != self.name else ''}"

    def read(self, kind: str, body: str, settings: Mapping[str, str]) -> DescribedProblem:
        """Return the problem of sizes such as ``m64n4096`` or ``m=64,n=4096``, and settings such as ``,dtype=fp16``.

        Raises `InputError` as `Family.read` does.
        """
        words = [word.partition("=") for word in body.split(",")]
        settings = {**settings, **{name: value for name, _, value in words if name in self.settings}}
        body = ",".join(name + equals + value for name, equals, value in words if name not in self.settings)
        names = self.description.sizes
        pattern = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
        sizes, rest = read_sizes(body, rf"({pattern})=?(\d+),?") if names else ({}, body)
        if rest:
            raise InputError(f"problem {f'{kind}:{body}'!r} is not readable at {rest!r}; write it as in {self.example}")
        if missing := [name for name in names if name not in sizes]:
            rule = f"give every size of {kind}, {', '.join(names)}, as in {self.example}"
            raise InputError(f"problem {f'{kind}:{body}'!r} lacks {', '.join(missing)}; {rule}")
        return self.problem(sizes, settings)

    def problem(self, sizes: Mapping[str, Number], setting: Mapping[str, str]) -> DescribedProblem:
        """See `Family.problem`. A setting that is not given takes its first registered value."""
        values = tuple(
            checked_int(self.name, size.name, sizes.get(size.name, size.default), size.minimum) for size in self.sizes
        )
        settings = tuple(setting.get(name) or default for name, default in self.setting_defaults.items())
        for name, value in zip(self.setting_names, settings, strict=True):
            choices = self.settings[name]
            if choices and value not in choices:
                raise InputError(f"{self.name}: {name} is {value!r}; known: {', '.join(choices)}")
        return DescribedProblem(self, values, settings)

    def as_own(self, problem: DescribedProblem) -> DescribedProblem:
        """Return the problem as one of this kernel, if its kernel has the same name, sizes and settings.

        The kernels' tables may differ in values. Raises `InputError` for another kernel's problem.
        """
        if problem.family == self:
            return problem
        names, own_names = ((each.name, *each.size_names, *each.setting_names) for each in (problem.family, self))
        if names != own_names:
            raise InputError(f"{problem} has a kernel with other sizes or settings; write it as in {self.example}")
        return self.problem(problem.sizes, dict(zip(self.setting_names, problem.settings, strict=True)))

    def setting_of(self, problem: DescribedProblem) -> tuple[str, ...]:
        """See `Family.setting_of`."""
        return problem.settings

    def sizes_of(self, problem: DescribedProblem) -> tuple[Number, ...]:
        """See `Family.sizes_of`."""
        return problem.values

    def allowed(self, problem: DescribedProblem, parameters: np.ndarray) -> np.ndarray:
        """Return a mask (configurations,) of the rows of ``parameters`` that the conditions allow."""
        values = {**problem.sizes, **dict(zip(self.parameter_names, parameters.T, strict=True))}
        keep = np.full(len(parameters), True)
        for condition in self.description.conditions or ():
            keep &= np.nan_to_num(np.broadcast_to(condition.value(values), len(keep))) != 0
        return keep

    def min_us(
        self, problem: DescribedProblem, gpu: Gpu, units: Collection[tuple[str, bool]] = (), *, cached: bool = False
    ) -> Number:
        """Return the time in µs of a problem's FLOPs and bytes at the `rates` of a GPU; ``cached`` bytes take no time.

        It is 0 if no formula of the sizes gives them, or if the GPU has no datasheet.
        """
        rates = self.rates(problem.dtype, gpu, units) if gpu.vendor else {}
        times_us = [
            self._problem_formulas[name].value(problem.sizes) / rate
            for name, rate in rates.items()
            if name != "bytes" or not cached
        ]
        return reduce(np.maximum, times_us, 0.0)

    def rates(self, dtype: str, gpu: Gpu, units: Collection[tuple[str, bool]] = ()) -> dict[str, float]:
        """Return the rates of a GPU per µs: "flops", "bytes", both or none. A rate needs a formula of the sizes.

        The rate of FLOPs is the peak of the dtype, and the rate of bytes is the bandwidth. If the dtype is unknown, the
        peak is the largest peak of the ``units`` (keys of `peak_flops_table`; by default all). The result is empty if
        the GPU has no figures.
        """
        if not gpu.sms:
            return {}
        peaks = peak_flops_table(gpu)
        peak = peaks.get((setting_value("dtype", dtype), True)) or max(peaks[unit] for unit in units or peaks)
        rates = {"flops": (peak if gpu.vendor else gpu.fp32_tflops) * 1e6, "bytes": gpu.dram_gbs * 1e3}
        return {name: rates[name] for name in self._problem_formulas if name in rates}

    def refusals(self, problem: DescribedProblem, parameters: np.ndarray, gpu: Gpu) -> dict[str, np.ndarray]:
        """Return reason → mask (configurations,) of the configurations that cannot run.

        A reason is a condition, or a launch above the known limits of a block by the formulas. ``parameters`` are as in
        `allowed`.
        """
        return {RULED_OUT: ~self.allowed(problem, parameters), **self.over_limits(problem, parameters, gpu)}

    def over_limits(self, problem: DescribedProblem, parameters: np.ndarray, gpu: Gpu) -> dict[str, np.ndarray]:
        """Return limit of a block → mask (configurations,) of the launches above it, as in `refusals`."""
        reasons: dict[str, np.ndarray] = {}
        values = {**problem.sizes, **dict(zip(self.parameter_names, parameters.T, strict=True))}
        cost = {name: np.nan_to_num(formula.value(values)) for name, formula in self.description.formulas.items()}
        threads, per_thread = cost.get("threads_per_block", 0.0), cost.get("registers_per_thread", 0.0)
        is_nvidia = gpu.compute_capability in LIMITS
        for name, needed, maximum in (
            ("shared_bytes", cost.get("shared_bytes", 0.0), max_shared_bytes(gpu)),
            ("threads_per_block", threads, MAX_THREADS * (gpu.vendor in ("nvidia", "amd"))),
            ("registers_per_thread", per_thread, MAX_REGISTERS_PER_THREAD * is_nvidia),
            ("threads_per_block * registers_per_thread", threads * per_thread, REGISTERS_PER_SM * is_nvidia),
        ):
            if maximum:
                reason = OVER_GPU_LIMIT.format(name=name, maximum=maximum, gpu=gpu.name)
                reasons[reason] = np.broadcast_to(needed > maximum, len(parameters))
        return reasons

    def stratum(self, problem: DescribedProblem) -> np.ndarray:
        """Return the kernel's name for every problem."""
        return np.full(len(np.atleast_1d(problem.values[0])), self.name, dtype=object)

    def configurations(self, texts: Sequence[str]) -> np.ndarray:
        """Return (texts, parameters) float64 codes of the values in configurations' texts; NaN for a text of no
        configuration."""
        codes = [*self.description.codes.values()]
        rows = np.full((len(texts), len(codes)), np.nan)
        for row, text in zip(rows, texts, strict=True):
            words = [word.partition("=")[2] for word in text.split(",")]
            if len(words) == len(codes) and words[0]:
                row[:] = [by_text.get(word, np.nan) for by_text, word in zip(codes, words, strict=True)]
        return rows

    def formula(self, setting: tuple[str, ...], gpu: Gpu) -> Formula:
        """Return the description's formulas; the candidate's argument is an array (configurations, parameters)."""
        registered = bool(gpu.vendor)
        m = machine(gpu) if gpu.sms else None
        figures = tuple(map(float, machine_features(m))) if m and registered else (np.nan,) * len(MACHINE_NAMES)
        pairs = zip(self.settings.values(), setting, strict=True)
        setting_codes = [float(values.index(value)) if value in values else np.nan for values, value in pairs]

        # The GPU's speed relative to an ordinary GPU; 1 if it has no figures.
        speed = np.sqrt(m.fp32_tflops / ORDINARY_TFLOPS * m.dram_gbs / ORDINARY_GBS) if m else 1.0

        def costs(values: Mapping[str, Number], formulas: Mapping[str, Any], work: Number) -> tuple[Number, ...]:
            """Return FLOPs, bytes and the roofline in µs; ``work`` if no formula or figure gives them."""
            flops = np.maximum(formulas["flops"].value(values), 1.0) if "flops" in formulas else work
            moved = np.maximum(formulas["bytes"].value(values), 1.0) if "bytes" in formulas else work
            if m is None or not formulas.keys() & {"flops", "bytes"}:
                return flops, moved, flops / WORK_UNIT / speed
            compute_us, memory_us = flops / m.fp32_tflops / 1e6, moved / m.dram_gbs / 1e3
            if {"flops", "bytes"} <= formulas.keys():
                return flops, moved, np.maximum(compute_us, memory_us)
            return flops, moved, compute_us if "flops" in formulas else memory_us

        def problem(sized: DescribedProblem) -> ProblemTerms:
            work = prod(1.0 * np.maximum(value, 1) for value in sized.values)
            flops, moved, base_us = costs(sized.sizes, self._problem_formulas, work)
            logs = tuple(np.log2(np.maximum(value, 1)) for value in sized.values)
            work_logs = tuple(np.log2(value) for value in (flops, moved, base_us, flops / moved))
            return ProblemTerms((*logs, *work_logs), base_us, sized)

        def candidate(terms: ProblemTerms, parameters: Any) -> tuple[tuple[Number, ...], Number]:
            columns = tuple(np.asarray(parameters, dtype=np.float64).T)
            values = {**terms.problem.sizes, **dict(zip(self.parameter_names, columns, strict=True))}
            own: Number = 0.0
            if {"flops", "bytes"} & self.description.formulas.keys() - self._problem_formulas.keys():
                work = prod(1.0 * np.maximum(value, 1) for value in terms.problem.values)
                own = np.log2(costs(values, self.description.formulas, work)[2] / terms.roofline_us)
            return (*columns, *self._launch(values, gpu if registered else None), own), 0

        return Formula((*setting_codes, *figures), problem, candidate)

    def _launch(self, values: Mapping[str, Number], gpu: Gpu | None) -> tuple[Number, ...]:
        """Return all but the last of the `LAUNCH_TERMS` of configurations; NaN if no formula or figure gives them."""
        formulas = self.description.formulas
        cost = {name: formulas[name].value(values) for name in formulas.keys() - {"flops", "bytes"}}
        blocks = np.maximum(cost.get("blocks", np.nan), 1.0)
        per_sm: Number = np.nan
        if gpu is not None and "threads_per_block" in cost and gpu.compute_capability in LIMITS:
            threads = np.clip(np.nan_to_num(cost["threads_per_block"], nan=1.0), 1.0, MAX_LAUNCHED_THREADS)
            registers = np.clip(cost.get("registers_per_thread", 0.0), 0.0, MAX_REGISTERS_PER_THREAD)
            shared = np.maximum(cost.get("shared_bytes", 0.0), 0.0)
            per_sm = 1.0 * resident(sm_limits(gpu.compute_capability), threads, registers, shared, 0).blocks_per_sm
        waves: tuple[Number, ...] = (np.nan, np.nan, np.nan)
        if gpu is not None and "blocks" in cost:
            waves = waves_of(blocks / np.where(per_sm > 0, per_sm, 1.0), machine(gpu))
        return np.log2(blocks), *waves, per_sm
