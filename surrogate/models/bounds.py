"""Censored candidates: what a problem's table leaves out, and the time that it at least took.

A table that names only a problem's best (and perhaps its heuristic's pick), or the fastest few (MIOpen's find-db), says
of every other candidate that would have run: not faster than this.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from surrogate.dataset.problems import device_names, joined
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu, gpu
from surrogate.models.support import Support

SETTING = ("gpu", "library", "direction", "dtype", "math", "layout")
"""Columns within which a candidate that ran on one problem counts as tried on all."""
LIST_LENGTH: Mapping[str, int] = {"mi100": 4, "mi210": 4, "mi250": 4, "mi300x": 6}
"""GPU → solvers that MIOpen's find-db keeps of a problem; a shorter list, or another GPU's, is complete.

Source: the lengths of the lists in MIOpen's find-db for gfx908, gfx90a and gfx942.
"""
PARTIAL = 2
"""Most ok rows of a partial problem: the best candidate's and the heuristic's."""


def bound_rows(rows: Rows) -> Rows | None:
    """Rows for the supported candidates that `unlisted` finds, ``time_us`` a lower bound in µs; None without any."""
    absent = unlisted(rows)
    return None if absent.empty else rows_of(absent, _devices(absent))


def unlisted(rows: Rows) -> pd.DataFrame:
    """A frame like that of ``rows``, one row per cut problem and candidate that its table leaves out.

    A candidate belongs to a problem where the same device and settings ran it on some other problem and support, as
    ``rows`` and the documented rules tell it, does not exclude it. A problem is cut where all its rows are ok and they
    are `PARTIAL` or fewer (cuDNN: its best time bounds the others) or as many solvers as the device keeps (MIOpen: the
    slowest listed time does; a table that has one row per algorithm counts as full). Devices outside the registry of
    GPUs are left out.
    """
    names = [name for name in ("algorithm", "solver") if name in rows.frame]
    listed = rows.frame.assign(
        _problem=rows.problem, _time=rows.time_us, _setting=joined(rows.frame, SETTING).to_numpy()
    )[_cut(rows)]
    tried = rows.frame[rows.ok].assign(_setting=joined(rows.frame, SETTING)[rows.ok])
    tried = tried[["_setting", *names]].drop_duplicates()
    times = listed.groupby("_problem", sort=False)["_time"]
    bound = np.where(listed["library"] == "miopen", times.transform("max"), times.transform("min"))
    problems = listed.assign(time_us=bound).drop_duplicates("_problem").drop(columns=names)
    every = problems.merge(tried, on="_setting")
    here = _keys(every, names).isin(_keys(listed, names))
    absent = every[~here].drop(columns=["_problem", "_time", "_setting"]).reset_index(drop=True)
    if absent.empty:
        return absent
    made = rows_of(absent, _devices(absent))
    return absent[Support.fit(rows).supported(made)].reset_index(drop=True)


def _cut(rows: Rows) -> np.ndarray:
    """(rows,) True for rows of problems whose table leaves out what was slower."""
    count = np.bincount(rows.problem)[rows.problem]
    complete = np.bincount(rows.problem, rows.ok)[rows.problem] == count
    names = device_names(rows.frame)
    keeps = np.array([LIST_LENGTH.get(name, 0) for name in names])
    enough = count >= keeps if "solver" in rows.frame else True
    cut = np.where(rows.frame["library"] == "miopen", (keeps > 0) & enough, count <= PARTIAL)
    return complete & cut & np.isin(names, list(_devices(rows.frame)))


def _keys(frame: pd.DataFrame, names: list[str]) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(frame[["_problem", *names]])


def _devices(frame: pd.DataFrame) -> dict[str, Gpu]:
    """Name as the frame spells it, and the registry's → GPU, of the registry's GPUs among those of the frame."""
    known = {}
    for name in frame["gpu"].astype(str).unique():
        try:
            known[name] = gpu(name)
        except InputError:
            continue
    return known | {one.name: one for one in known.values()}
