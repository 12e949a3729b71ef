"""`seer-paper`: SEER as published, from kernel counters: variant, class, instructions, DRAM traffic, waves, time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd

from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError, read_toml
from surrogate.models.base import TimeModel
from surrogate.models.seer.fits import COUNTED_ALGORITHMS, FFT_ALGORITHMS, AlgorithmFit, FftFit, MeasuredKernels
from surrogate.models.seer.physics import COUNTERS, feasible, in_domain, require_convolutions, sizes_of
from surrogate.models.seer.trees import EVALUATIONS

_DEVICE = ["gpu", "library_version", "algorithm"]


@dataclass(eq=False, repr=False)
class SeerPaper(TimeModel):
    """SEER's fits per (GPU, library version, algorithm), for square, ungrouped, undilated fp32 forward convolutions.

    Parameters
    ----------
    evaluations
        Number of leaf sizes that are tried for each tree.
    random_state
        Seed of the trees' folds and leaf sizes.
    known_launch
        If True, the measured variant and blocks are used, and main kernels are predicted, as in the paper's Test-set-I.
    published_blocks
        If True, the blocks of non-fused Winograd are predicted with t_n = 64 for every tile, as in the original.

    Attributes
    ----------
    counted_
        "GPU|version|algorithm" → its `AlgorithmFit`.
    fft_
        "GPU|version|algorithm" → its `FftFit`.

    Raises
    ------
    InputError
        On fitting rows without counters of main kernels, or of another family.

    References
    ----------
    SEER (PACT 2021) and its public repository.
    """

    name: ClassVar[str] = "seer-paper"
    help: ClassVar[str] = "SEER as published, from kernel counters (PACT 2021)"
    tunable: ClassVar[bool] = False
    storable: ClassVar[bool] = True
    json_file: ClassVar[str] = "seer.json"
    json_types: ClassVar[Mapping[str, Any]] = {"counted_": Mapping[str, AlgorithmFit], "fft_": Mapping[str, FftFit]}

    evaluations: int = EVALUATIONS
    random_state: int = 0
    known_launch: bool = False
    published_blocks: bool = False

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit on rows with the columns of `physics.with_kernel_metrics`. Raise `InputError` if there are none."""
        require_convolutions(rows, self.name)
        frame = rows.frame
        lacking = [name for name in _NEEDED if name not in frame or frame[name].isna().all()]
        if lacking:
            names = ", ".join(lacking)
            raise InputError(f"{self.name} needs counters of main kernels; the table lacks {names}; {_SOURCE}")
        frame = frame.assign(time_us=time_us)
        settings = {"seed": self.random_state, "evaluations": self.evaluations}
        self.counted_: dict[str, AlgorithmFit] = {}
        self.fft_: dict[str, FftFit] = {}
        for key, algorithm, members in _parts(frame):
            part = frame.iloc[members]
            if algorithm in FFT_ALGORITHMS:
                time, bound = (part[name].to_numpy(dtype=np.float64) for name in ("time_us", "kernel_class"))
                self.fft_[key] = FftFit.fit(algorithm, sizes_of(part), time, bound, **settings)
                continue
            counted = part[_counted(part)]
            if len(counted):
                tiles = counted["variant"].to_numpy()
                extra_us = counted["other_kernels_us"].fillna(0.0).to_numpy()
                measured = _measured(counted)
                self.counted_[key] = AlgorithmFit.fit(algorithm, measured, tiles, extra_us=extra_us, **settings)
        if not self.counted_:
            raise InputError(f"{self.name}: no ok row has all of {', '.join(_NEEDED)} of its main kernel; {_SOURCE}")

    def _predict(self, rows: Rows) -> np.ndarray:
        """Return times; NaN outside SEER's domain, and for a device or variant without training rows."""
        time_us = np.full(len(rows), np.nan)
        for key, _, members in _parts(rows.frame):
            part = rows.frame.iloc[members]
            sizes = sizes_of(part)
            if key in self.counted_:
                fit = self.counted_[key]
                if self.known_launch:
                    launch = part["variant"].to_numpy(), part["blocks"].to_numpy()
                    time_us[members] = fit.main_kernel_us(sizes, *launch)
                else:
                    time_us[members] = fit.predict_us(sizes, self.published_blocks)
            if key in self.fft_:
                time_us[members] = self.fft_[key].predict_us(sizes)
        return time_us

    def bound(self, frame: pd.DataFrame) -> np.ndarray:
        """Return classes (rows,) by the paper's trees, 0 … 2 as in `physics.kernel_class`; −1 without a fitted tree.

        ``frame`` holds problems with settings, ``gpu``, ``library``, ``library_version`` and ``algorithm``.
        """
        bound = np.full(len(frame), -1)
        for key, _, members in _parts(frame):
            fit = self.counted_.get(key) or self.fft_.get(key)
            if fit:
                bound[members] = fit.bound(sizes_of(frame.iloc[members]))
        return bound


_NEEDED = tuple(name for name in COUNTERS if name != "waves")
_SOURCE: str = read_toml(__file__)["counters"]


def _parts(frame: pd.DataFrame) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (key, algorithm, positions) of each device's and algorithm's feasible rows in SEER's domain."""
    is_modelled = frame["algorithm"].isin([*COUNTED_ALGORITHMS, *FFT_ALGORITHMS]).to_numpy()
    inside = np.flatnonzero(in_domain(frame) & is_modelled)
    for names, index in frame.iloc[inside].groupby(_DEVICE, sort=True).indices.items():
        gpu, version, algorithm = map(str, cast(tuple[str, ...], names))
        members = inside[index]
        members = members[feasible(algorithm, sizes_of(frame.iloc[members]))]
        if len(members):
            yield f"{gpu}|{version}|{algorithm}", algorithm, members


def _counted(frame: pd.DataFrame) -> np.ndarray:
    """Return True (rows,) if the main kernel has all counters, at least one block, and FP32 instructions."""
    full = frame[["variant", "kernel_class", *_NEEDED]].notna().all(axis=1)
    launched = (frame[["blocks", "b_max"]] >= 1).all(axis=1)
    return (full & launched & (frame["fp32_instructions"] > 0)).to_numpy()


def _measured(frame: pd.DataFrame) -> MeasuredKernels:
    """Return counters per block.

    If a main kernel has no time of its own, it gets the row's time less the time of the other kernels.
    """
    column = {name: frame[name].to_numpy(dtype=np.float64) for name in COUNTERS}
    remaining_us = frame["time_us"] - frame["other_kernels_us"].fillna(0.0)
    main_us = frame["main_kernel_us"].fillna(remaining_us.where(remaining_us > 0, frame["time_us"]))
    time_us = main_us.to_numpy(dtype=np.float64)
    return MeasuredKernels(
        sizes_of(frame),
        column["blocks"],
        b_max=column["b_max"],
        instructions=column["fp32_instructions"] / column["blocks"],
        reads=column["dram_read_transactions"] / column["blocks"],
        writes=column["dram_write_transactions"] / column["blocks"],
        bound=frame["kernel_class"].to_numpy(dtype=np.int64),
        time_us=time_us,
    )
