"""From rows to problems: codes of problems and shapes, the newest library version, and which problems can be judged."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from surrogate.dataset.schema import PROBLEM_KEY, SHAPE_COLUMNS, SIZE_COLUMNS
from surrogate.features.gpu import canonical


def joined(frame: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """One text per row: the values of ``columns`` with ``|`` between them; a GPU goes by its registry name."""
    texts = [
        device_names(frame) if column == "gpu" else frame[column].astype(str).to_numpy(dtype=object)
        for column in columns
    ]
    return pd.Series(["|".join(row) for row in zip(*texts, strict=True)], index=frame.index, dtype=object)


def device_names(frame: pd.DataFrame) -> np.ndarray:
    """(rows,) the registry name of each row's GPU, so that aliases of one GPU are one device."""
    names = frame["gpu"].astype(str)
    return names.map({name: canonical(name) for name in names.unique()}).to_numpy(dtype=object)


def codes(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """One int per row, equal where all ``columns`` are equal, numbered from 0 in order of appearance."""
    if "gpu" in columns:
        frame = frame.assign(gpu=device_names(frame))
    return frame.groupby(list(columns), sort=False, dropna=False, observed=True).ngroup().to_numpy()


def problem_codes(frame: pd.DataFrame) -> np.ndarray:
    """Problem of each row: device, library version, settings and all sizes."""
    return codes(frame, PROBLEM_KEY)


def shape_codes(frame: pd.DataFrame) -> np.ndarray:
    """Shape of each row: the sizes without the batch; device and settings do not matter."""
    return codes(frame, SHAPE_COLUMNS)


def version_number(version: str) -> tuple[int, ...]:
    """The first dotted number in a version text, for ordering: ``7.6.4`` → (7, 6, 4), ``find-db v2`` → (2,)."""
    found = re.search(r"\d+(?:\.\d+)*", str(version))
    return tuple(int(part) for part in found[0].split(".")) if found else (0,)


def newest_version(frame: pd.DataFrame) -> np.ndarray:
    """True for rows whose library version is the newest measured for their (gpu, settings, problem)."""
    versions = frame["library_version"].unique()
    order = {
        version: rank for rank, version in enumerate(sorted(versions, key=lambda v: (version_number(v), v)))
    }
    rank = frame["library_version"].map(order)
    key = [column for column in PROBLEM_KEY if column != "library_version"]
    newest = rank.groupby([frame[column] for column in key], sort=False).transform("max")
    return (rank == newest).to_numpy()


def fully_measured(frame: pd.DataFrame) -> np.ndarray:
    """True for rows whose problem has a row for every algorithm of its device and settings in this table.

    This is the rule for ``all`` tables: an algorithm that was tried elsewhere but has no row here is unmeasured.
    """
    setting = [c for c in PROBLEM_KEY if c not in SIZE_COLUMNS]
    tried = frame.groupby(setting, sort=False)["algorithm"].transform("nunique")
    here = frame.groupby(list(PROBLEM_KEY), sort=False)["algorithm"].transform("nunique")
    return (tried == here).to_numpy()


def judged_rows(frame: pd.DataFrame, candidates: str) -> np.ndarray:
    """True for rows of judged problems: two candidates ok or more, newest version; for ``all``, none unmeasured."""
    ok = (frame["status"] == "ok").astype(int)
    enough = ok.groupby(problem_codes(frame)).transform("sum").to_numpy() >= 2
    judged = enough & newest_version(frame)
    return judged & fully_measured(frame) if candidates == "all" else judged


def fastest_solver(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per (problem, algorithm): that of its fastest solver, ok rows before others."""
    if "solver" not in frame:
        return frame
    order = frame.assign(_late=(frame["status"] != "ok")).sort_values(["_late", "time_us"], kind="stable")
    kept = order.drop_duplicates([*PROBLEM_KEY, "algorithm"]).drop(columns="_late")
    return kept.sort_index().reset_index(drop=True)
