"""From rows to problems: codes of problems and shapes, the newest library version, and which problems can be judged.

Functions take a normalised table of one family, unless they say otherwise.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError, require_known
from surrogate.features.families import Family
from surrogate.features.gpu import canonical
from surrogate.features.text import version_number


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


def problem_codes(frame: pd.DataFrame, kind: Family) -> np.ndarray:
    """Problem of each row: device, settings and all sizes; its candidates may come from several libraries."""
    return codes(frame, kind.problem_key)


def shape_codes(frame: pd.DataFrame, kind: Family) -> np.ndarray:
    """Shape of each row: the sizes without the batch; device and settings do not matter."""
    return codes(frame, kind.shape_names) if kind.shape_names else np.zeros(len(frame), dtype=int)


def shape_names(frame: pd.DataFrame, kind: Family) -> np.ndarray:
    """A text per row naming its shape."""
    parts = [frame[column].astype(str) for column in kind.shape_names]
    return np.array(["/".join(row) for row in zip(*parts, strict=True)], dtype=object)


def candidate_names(frame: pd.DataFrame, kind: Family) -> np.ndarray:
    """(rows,) text: library, what the family adds, algorithm (and solver, where the table has them)."""
    solver = ("solver",) if "solver" in frame else ()
    return joined(frame, ("library", *kind.candidate_key, *solver)).to_numpy()


def strata(frame: pd.DataFrame, kind: Family) -> np.ndarray:
    """(rows,) the stratum of each row's problem."""
    return _of_problems(frame, kind, kind.stratum)


def kernel_groups(frame: pd.DataFrame, kind: Family) -> np.ndarray:
    """(rows,) the group of problems that run the same kernels; see `Family.kernel_group`."""
    return _of_problems(frame, kind, kind.kernel_group)


def _of_problems(frame: pd.DataFrame, kind: Family, name: Callable[[Any], Any]) -> np.ndarray:
    """(rows,) what ``name`` says of each row's problem; problems of one setting are asked together."""
    out = np.full(len(frame), "", dtype=object)
    for setting, positions in groups(frame, kind.setting_names):
        out[positions] = name(problems_of(frame.iloc[positions], kind, setting))
    return out


def groups(frame: pd.DataFrame, columns: Sequence[str]) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """(values, positions) of every combination of the columns' values, in order of appearance."""
    code = frame.groupby(list(columns), sort=False, dropna=False, observed=True).ngroup().to_numpy()
    values = [frame[column].to_numpy(dtype=object) for column in columns]
    return [(tuple(str(column[part[0]]) for column in values), part) for part in rows_by_code(code)]


def rows_by_code(code: np.ndarray) -> list[np.ndarray]:
    """The rows of every code (rows,), codes ascending."""
    order = np.argsort(code, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1) if len(order) else []


def by_setting(frame: pd.DataFrame, kind: Family) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """((GPU by its registry name, library, setting …), positions) of every combination."""
    return groups(frame.assign(gpu=device_names(frame)), ("gpu", "library", *kind.setting_names))


def problems_of(frame: pd.DataFrame, kind: Family, setting: tuple[str, ...]) -> object:
    """The problems of all rows as one problem of arrays; all rows have the same ``setting``."""
    sizes = {name: frame[name].to_numpy(dtype=np.int64) for name in kind.size_names}
    return kind.problem(sizes, dict(zip(kind.setting_names, setting, strict=True)))


def version_key(version: str) -> tuple[Any, ...]:
    """A version for ordering, as PEP 440 has it: 1.3.0.dev1 < 1.3.0rc9 < 1.3.0rc20 < 1.3.0 < 1.3.0.post1 < 1.3.1."""
    stages = ("dev", "a", "b", "rc", "", "post")
    match = re.search(r"\d[._-]?(dev|a|b|rc|post)(\d+)", version.partition("+")[0])
    stage, number = (match[1], int(match[2])) if match else ("", 0)
    return version_number(version), stages.index(stage), number, version


def newest_version(frame: pd.DataFrame, kind: Family) -> np.ndarray:
    """True for rows whose library version is the newest measured for their (gpu, problem, library)."""
    versions = sorted(frame["library_version"].unique(), key=version_key)
    rank = frame["library_version"].map({version: rank for rank, version in enumerate(versions)})
    newest = rank.groupby(codes(frame, (*kind.problem_key, "library"))).transform("max")
    return (rank == newest).to_numpy()


def fully_measured(frame: pd.DataFrame, kind: Family) -> np.ndarray:
    """True for rows whose problem has a row for every algorithm of its device, library and settings in this table.

    This is the rule for ``all`` tables: an algorithm that was tried elsewhere but has no row here is unmeasured.
    """
    setting = ["gpu", "library", "library_version", *kind.setting_names]
    tried = frame.groupby(setting, sort=False)["algorithm"].transform("nunique")
    here = frame.groupby([*setting, *kind.size_names], sort=False)["algorithm"].transform("nunique")
    return (tried == here).to_numpy()


def judged_rows(frame: pd.DataFrame, kind: Family, candidates: str) -> np.ndarray:
    """True for rows of judged problems: two candidates ok or more, newest versions; for ``all``, none unmeasured."""
    newest = newest_version(frame, kind)
    problem = pd.Series(problem_codes(frame, kind))
    ok = pd.Series(((frame["status"] == "ok").to_numpy() & newest).astype(int))
    judged = newest & (ok.groupby(problem).transform("sum").to_numpy() >= 2)
    if candidates == "all":
        complete = pd.Series(fully_measured(frame, kind) | ~newest)
        judged &= complete.groupby(problem).transform("all").to_numpy()
    return judged


def candidate_frame(data: Dataset, candidate: str) -> pd.DataFrame:
    """The rows to choose among, of all families: of each ``algorithm`` its fastest solver, or every ``solver``.

    Raises `InputError` for another ``candidate``, and for solvers that the table does not name.
    """
    require_known("candidate", candidate, ("algorithm", "solver"))
    if candidate == "algorithm":
        return fastest_solver(data.frame)
    if "solver" not in data.frame:
        raise InputError("candidate solver needs a `solver` column, which this table lacks; use algorithm")
    return data.frame


def fastest_solver(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per (problem, algorithm) of any family: that of its fastest solver, ok rows before others."""
    if "solver" not in frame:
        return frame
    from surrogate.dataset.columns import SETTING_COLUMNS, SIZE_COLUMNS

    key = [column for column in (*SETTING_COLUMNS, *SIZE_COLUMNS, "algorithm") if column in frame]
    order = frame.assign(_late=(frame["status"] != "ok")).sort_values(["_late", "time_us"], kind="stable")
    fastest = order.drop_duplicates(key).drop(columns=["_late", "solver"])
    return fastest.sort_index().reset_index(drop=True)
