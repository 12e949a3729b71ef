"""`unit-times`: a weighted sum of the times that a kernel's units take at datasheet rates, for tables of few GPUs.

The units are arithmetic, traffic and thread blocks; a call adds a constant. Coefficients are fitted per algorithm,
operator and element type, on each generation of GPUs and on all of them. Boards of one generation share kernels, so the
datasheet decides how their times differ. Near measured problems of the generation, the answer takes over their errors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from surrogate.dataset.problems import joined
from surrogate.dataset.rows import Rows
from surrogate.features.roofline import exponentials_us
from surrogate.models.base import SearchRange
from surrogate.models.baselines import MIN_US, peak_times
from surrogate.models.least_squares import GroupLevel
from surrogate.models.linear import LiEtAl

EXPONENTIAL_WEIGHT = 0.3
"""Weight of the exponentials' time in the arithmetic of attention.

It is a compromise. Of the two GPUs with cuDNN 9's rows, the one left out is predicted best with 0. TensorRT-LLM's
prefills give 0.4 on B200, GB200, H100 and H200. There, B300 and GB300, with twice the units, take 0.80 to 0.86 of the
time of B200 and GB200.
"""
CALL_US = 10.0
"""Time of a call without work. Of 2, 5, 10 and 20 µs it fits cuDNN 9's attention best on models and GPUs left out."""
NEAR = 1e-9
"""Squared distance of equal problems."""


@dataclass(eq=False, repr=False)
class UnitTimes(LiEtAl):
    """time = Σ coefficient · time of a unit + `CALL_US`, corrected by the errors of near measured problems.

    Parameters
    ----------
    least_rows
        Minimum rows for coefficients of one generation's own.
    shrinkage
        Weight of no error beside the measured errors, each of which has the weight 1 / squared distance in log2 sizes.

    Attributes
    ----------
    coefficients_
        Group's key → coefficients of the units, none negative.
    errors_
        Key of a generation's group → (rows, sizes + 1): log2 sizes of its problems, and log(measured / predicted).

    References
    ----------
    Li, Sun, Jog, "Path Forward Beyond Simulators" (MICRO 2023), for times that are linear in datasheet times. Shepard
    1968, "A two-dimensional interpolation function for irregularly-spaced data".
    """

    name: ClassVar[str] = "unit-times"
    help: ClassVar[str] = "linear in the times of arithmetic, traffic and thread blocks, per generation of GPUs"
    storable: ClassVar[bool] = True
    on_request: ClassVar[bool] = True
    has_min_us: ClassVar[bool] = False
    json_file: ClassVar[str] = "units.json"
    json_types: ClassVar[Mapping[str, Any]] = dict.fromkeys(("coefficients_", "errors_"), Mapping[str, np.ndarray])

    shrinkage: Annotated[float, SearchRange(0.1, 10.0, log=True)] = 0.5

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        LiEtAl._fit(self, rows, np.maximum(time_us - CALL_US, MIN_US))
        error = np.log(time_us / (LiEtAl._predict(self, rows) + CALL_US))
        measured = np.column_stack([_coordinates(rows), error])
        self.errors_ = {key: measured[index] for key, index in self.levels(rows)[0].groups(np.arange(len(rows)))}

    def _predict(self, rows: Rows) -> np.ndarray:
        error = np.zeros(len(rows))
        place = _coordinates(rows)
        for key, index in self.levels(rows)[0].groups(np.arange(len(rows))):
            if key in self.errors_:
                measured = self.errors_[key]
                weight = 1.0 / (((place[index, None] - measured[None, :, :-1]) ** 2).sum(axis=2) + NEAR)
                error[index] = weight @ measured[:, -1] / (weight.sum(axis=1) + self.shrinkage)
        return (LiEtAl._predict(self, rows) + CALL_US) * np.exp(error)

    def units(self, rows: Rows) -> np.ndarray:
        """Return the times of arithmetic and traffic in µs, and the blocks of an SM, (rows, 3)."""
        units = np.column_stack([peak_times(rows), np.exp2(rows.column("log2_blocks_per_sm"))])
        if "log2_pairs_per_sm" in rows.column_names:
            names = ("log2_pairs_per_sm", "boost_mhz", "compute_capability")
            pairs, boost_mhz, capability = (rows.column(name).astype(np.float64) for name in names)
            units[:, 0] += EXPONENTIAL_WEIGHT * exponentials_us(np.exp2(pairs), boost_mhz, capability)
        return units

    def levels(self, rows: Rows) -> list[GroupLevel]:
        """Return levels of groups: an algorithm in a setting on a generation; on all GPUs; all algorithms; all
        settings."""
        family = rows.family
        kinds = [name for name in family.setting_names if name not in family.candidate_key]
        frame = rows.frame.assign(generation=rows.column("compute_capability").astype(int))
        if family.half_types_share_algorithms:
            frame = frame.replace({name: {"fp16": "bf16"} for name in kinds})
        names = ("library", *kinds, "algorithm")
        levels = ((*names, "generation"), names, names[:-1], names[:2])
        return [GroupLevel.of(joined(frame, each).to_numpy()) for each in levels]


def _coordinates(rows: Rows) -> np.ndarray:
    """Return the log2 sizes (rows, sizes) in which distances are measured."""
    family = rows.family
    names = tuple(name for name in family.dimension_names if name in family.problem_names)
    return rows.columns(names).astype(np.float64)
