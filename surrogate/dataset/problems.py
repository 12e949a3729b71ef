"""Problems of rows: codes of problems and shapes, the newest library version, and the rows for an evaluation.

Functions take a normalised table of one family, unless stated otherwise.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from surrogate.dataset.columns import FAMILY_COLUMN, SETTING_COLUMNS, SIZE_COLUMNS
from surrogate.features.algorithms import version_key
from surrogate.features.families import DEFAULT_FAMILY, FAMILIES, Family
from surrogate.features.gpu import canonical


def families_of(frame: pd.DataFrame, described_family: Family | None = None) -> tuple[Family, ...]:
    """Return the families of a normalised table, in the registry's order.

    ``described_family`` is the family of a described kernel: all rows belong to it, and it is not in the registry.
    """
    if described_family is not None:
        return (described_family,)
    names = set(frame[FAMILY_COLUMN].unique()) if FAMILY_COLUMN in frame else {DEFAULT_FAMILY}
    return tuple(family for name, family in FAMILIES.items() if name in names)


def family_rows(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) True for rows of the family."""
    if FAMILY_COLUMN not in frame:
        return np.full(len(frame), family.name == DEFAULT_FAMILY)
    return (frame[FAMILY_COLUMN] == family.name).to_numpy()


def joined(frame: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Return one text per row: the values of ``columns`` with ``|`` between them; a GPU has its registry name."""
    texts = [
        device_names(frame) if column == "gpu" else frame[column].astype(str).to_numpy(dtype=object)
        for column in columns
    ]
    return pd.Series(["|".join(row) for row in zip(*texts, strict=True)], index=frame.index, dtype=object)


def device_names(frame: pd.DataFrame) -> np.ndarray:
    """Return (rows,) the registry name of each row's GPU, so that aliases of a GPU are one device."""
    names = frame["gpu"].astype(str)
    return names.map({name: canonical(name) for name in names.unique()}).to_numpy(dtype=object)


def codes(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """Return (rows,) int codes, numbered from 0 in order of appearance; rows with equal ``columns`` have equal codes.

    GPUs are compared by their registry names.
    """
    return _codes(frame.assign(gpu=device_names(frame)) if "gpu" in columns else frame, columns)


def _codes(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """Return `codes` of the columns' unchanged values.

    The loop over columns is 3 times as fast as pandas' grouping for the few rows of one answer.
    """
    code = np.zeros(len(frame), dtype=np.int64)
    for column in columns:
        of_column, values = pd.factorize(frame[column], use_na_sentinel=False)
        if len(values) > 1:
            code, _ = pd.factorize(code * len(values) + of_column)
    return code


def problem_codes(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) codes of problems: device, settings, all sizes. Candidates of several libraries share a code."""
    return codes(frame, family.problem_key)


def shape_codes(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) codes of shapes: the values of `shape_columns`."""
    columns = shape_columns(frame, family)
    return codes(frame, columns) if columns else np.zeros(len(frame), dtype=int)


def shape_columns(frame: pd.DataFrame, family: Family) -> tuple[str, ...]:
    """Return the columns that form a shape: the sizes without the batch, and without device and settings.

    If a described kernel was measured in only one shape, return the GPU; with only one GPU, the configuration.
    """
    if not family.parameter_names or not len(frame):
        return family.shape_names
    several = (names for names in (family.shape_names, ("gpu",)) if (frame[list(names)].nunique() > 1).any())
    return next(several, ("solver",))


def shape_names(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) a text of each row's shape."""
    parts = [frame[column].astype(str) for column in shape_columns(frame, family)]
    return np.array(["/".join(row) for row in zip(*parts, strict=True)], dtype=object)


def candidate_names(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) the candidate: library, columns of the family, algorithm, and solver if there is such a column."""
    solver = ("solver",) if "solver" in frame else ()
    return joined(frame, ("library", *family.candidate_key, *solver)).to_numpy()


def strata(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) the stratum of each row's problem."""
    return _by_problem(frame, family, family.stratum)


def kernel_groups(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) the group of problems that run the same kernels; see `Family.kernel_group`."""
    return _by_problem(frame, family, family.kernel_group)


def _by_problem(frame: pd.DataFrame, family: Family, name: Callable[[object], np.ndarray]) -> np.ndarray:
    """Return (rows,) ``name`` of each row's problem, called once per setting on arrays."""
    out = np.full(len(frame), "", dtype=object)
    for setting, positions in row_groups(frame, family.setting_names):
        out[positions] = name(problems_of(frame.iloc[positions], family, setting))
    return out


def row_groups(frame: pd.DataFrame, columns: Sequence[str]) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """Return (values, positions) for every combination of the columns' values, in order of appearance."""
    if not columns:
        return [((), np.arange(len(frame)))]
    values = [frame[column].to_numpy(dtype=object) for column in columns]
    return [(tuple(str(column[part[0]]) for column in values), part) for part in rows_by_code(_codes(frame, columns))]


def rows_by_code(code: np.ndarray) -> list[np.ndarray]:
    """Return the positions of the rows of each code, codes ascending; ``code`` is (rows,)."""
    order = np.argsort(code, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1) if len(order) else []


def by_setting(frame: pd.DataFrame, family: Family) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """Return ((registry name of the GPU, library, setting …), positions) for every combination."""
    return row_groups(frame.assign(gpu=device_names(frame)), ("gpu", "library", *family.setting_names))


def problems_of(frame: pd.DataFrame, family: Family, setting: tuple[str, ...]) -> object:
    """Return the problems of all rows as one problem of arrays; all rows have the same ``setting``."""
    sizes = {name: frame[name].to_numpy(dtype=np.int64) for name in family.size_names}
    return family.problem(sizes, dict(zip(family.setting_names, setting, strict=True)))


def newest_version(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) True if the row has the newest library version measured for its (gpu, problem, library)."""
    versions = sorted(frame["library_version"].unique(), key=version_key)
    rank = frame["library_version"].map({version: rank for rank, version in enumerate(versions)}).astype(int)
    newest = rank.groupby(codes(frame, (*family.problem_key, "library"))).transform("max")
    return (rank == newest).to_numpy()


def fully_measured(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) True if the problem has a row for every algorithm of its device, library and settings.

    This is the rule for ``all`` tables: an algorithm is unmeasured if other problems have it and this one does not.
    """
    setting = ["gpu", "library", "library_version", *family.setting_names]
    tried = frame.groupby(setting, sort=False)["algorithm"].transform("nunique")
    measured = frame.groupby([*setting, *family.size_names], sort=False)["algorithm"].transform("nunique")
    return (tried == measured).to_numpy()


def evaluation_rows(frame: pd.DataFrame, family: Family, candidates: str) -> np.ndarray:
    """Return (rows,) True for rows of problems that an evaluation uses.

    Only the newest library versions count. Such a problem has at least two candidates with status ok. If ``candidates``
    is ``all``, it also has a row for every algorithm.
    """
    # All masks are by row. A property of a problem is repeated for each of its rows.
    newest = newest_version(frame, family)
    problem = pd.Series(problem_codes(frame, family))
    ok = pd.Series(((frame["status"] == "ok").to_numpy() & newest).astype(int))
    evaluated = newest & (ok.groupby(problem).transform("sum").to_numpy() >= 2)
    if candidates == "all":
        complete = pd.Series(fully_measured(frame, family) | ~newest)
        evaluated &= complete.groupby(problem).transform("all").to_numpy()
    return evaluated


def key_columns(frame: pd.DataFrame, described_family: Family | None = None) -> list[str]:
    """Return the columns that form the key of a row, for a table of any families; parameters as in `families_of`."""
    row_key = described_family.row_key if described_family else ()
    names = dict.fromkeys((*SETTING_COLUMNS, *SIZE_COLUMNS, *row_key, "algorithm", "solver"))
    return [name for name in names if name in frame]


def fastest_solver(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per (problem, algorithm) of any family: its fastest solver, with ok rows first."""
    if "solver" not in frame:
        return frame
    key = [column for column in key_columns(frame) if column != "solver"]
    order = frame.assign(_late=(frame["status"] != "ok")).sort_values(["_late", "time_us"], kind="stable")
    return order.drop_duplicates(key).drop(columns=["_late", "solver"]).sort_index().reset_index(drop=True)
