"""`Rows`: a checked table of one family with its columns for a model. Built once, sliced often."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.checks import families_of
from surrogate.dataset.problems import candidate_names, groups, problem_codes, problems_of, shape_codes, strata
from surrogate.features.errors import InputError
from surrogate.features.families import Family
from surrogate.features.gpu import Gpu, gpu
from surrogate.features.text import version_column

CONTEXT_NAMES = ("library_version",)
"""Columns that a model sees besides the family's: which release measured."""


@dataclass(frozen=True)
class Rows:
    """Rows of one family as models and judge see them; every array has one entry per row.

    ``features`` (rows, len(column_names)) float32; ``roofline_us`` of the problem; ``workspace_bytes`` of the
    candidate; ``time_us`` NaN where not measured; ``ok`` True where it was; ``candidate`` its name; ``problem`` and
    ``shape`` are codes; ``order`` the candidate's place among its library's (ties go to the lowest). ``devices`` are
    those that the table's own metadata describes, by name.
    """

    family: Family
    frame: pd.DataFrame
    features: np.ndarray
    roofline_us: np.ndarray
    workspace_bytes: np.ndarray
    time_us: np.ndarray
    ok: np.ndarray
    candidate: np.ndarray
    problem: np.ndarray
    shape: np.ndarray
    stratum: np.ndarray
    order: np.ndarray
    devices: Mapping[str, Gpu]

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def sizes(self) -> np.ndarray:
        """(rows, sizes) int64, in the order of the family's ``size_names``."""
        return self.frame[list(self.family.size_names)].to_numpy(dtype=np.int64)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns of ``features``."""
        return (*self.family.column_names, *CONTEXT_NAMES)

    def take(self, index: Any) -> "Rows":
        """The rows at these positions (or where the mask holds)."""
        index = np.asarray(index)
        positions = np.flatnonzero(index) if index.dtype == bool else index
        arrays = (getattr(self, field.name)[positions] for field in fields(self)[2:-1])
        return Rows(self.family, self.frame.iloc[positions], *arrays, devices=self.devices)

    def column(self, name: str) -> np.ndarray:
        """One column of ``features`` by name (rows,)."""
        return self.features[:, self.column_names.index(name)]

    def columns(self, names: tuple[str, ...]) -> np.ndarray:
        """(rows, len(names)) float32."""
        places = {name: position for position, name in enumerate(self.column_names)}
        return self.features[:, [places[name] for name in names]]


def _named(device: str, rows: pd.DataFrame) -> Gpu:
    """The registry's GPU. Raises `InputError` for an unknown one; of a CPU it says where its description is."""
    try:
        return gpu(device)
    except InputError:
        if "library" in rows and (rows["library"] == "reference").all():
            raise InputError(f"{device!r} is a CPU that only its run's .parquet describes; give that file") from None
        raise


def rows_of(
    table: pd.DataFrame | Rows, kind: Family | None = None, devices: Mapping[str, Gpu] = MappingProxyType({})
) -> Rows:
    """The columns of every row of a normalised table of one family; ``devices`` are known beside the registry's GPUs.

    `Rows` are returned as they are. Raises `InputError` for an unknown GPU, or a table of several families.
    """
    if isinstance(table, Rows):
        return table
    if kind is None:
        kinds = families_of(table)
        if len(kinds) != 1:
            names = ", ".join(each.name for each in kinds)
            raise InputError(f"a table of one family is needed; this one has {names}")
        kind = kinds[0]
    frame = table
    width = len(kind.column_names) + len(CONTEXT_NAMES)
    features = np.empty((len(frame), width), dtype=np.float32)
    roofline_us, workspace = np.empty(len(frame)), np.zeros(len(frame))
    candidate_columns = slice(len(kind.problem_names), len(kind.problem_names) + len(kind.candidate_names))
    # 1. One formula serves all rows of a setting on a GPU.
    for (device, *values), positions in groups(frame, ("gpu", *kind.setting_names)):
        setting, part = tuple(values), frame.iloc[positions]
        formula = kind.formula(setting, devices.get(device) or _named(device, part))
        terms = formula.problem(problems_of(part, kind, setting))
        features[positions, : candidate_columns.start] = _stacked(terms.values, len(part))
        features[positions, candidate_columns.stop : -len(CONTEXT_NAMES)] = formula.constant
        roofline_us[positions] = terms.roofline_us
        if not kind.candidate_names:
            continue
        # 2. The candidates' own columns, mechanism by mechanism.
        for mechanism, members in _mechanisms(part, kind, setting):
            chosen = part.iloc[members]
            chosen_terms = formula.problem(problems_of(chosen, kind, setting))
            columns, bytes_needed = formula.candidate(chosen_terms, mechanism)
            at = positions[members]
            features[at, candidate_columns] = _stacked(columns, len(at))
            workspace[at] = bytes_needed
    versions = {version: version_column(version) for version in frame["library_version"].unique()}
    features[:, -1] = frame["library_version"].map(versions)
    times = frame["time_us"] if "time_us" in frame else pd.Series(np.nan, index=frame.index)
    measured = times.to_numpy(dtype=np.float64)
    status = (frame["status"] == "ok").to_numpy() if "status" in frame else np.isfinite(measured)
    return Rows(
        kind,
        frame,
        features,
        roofline_us,
        workspace,
        measured,
        status & np.isfinite(measured),
        candidate_names(frame, kind),
        problem_codes(frame, kind),
        shape_codes(frame, kind),
        strata(frame, kind),
        _order(frame, kind),
        devices,
    )


def rows_by_family(
    frame: pd.DataFrame, devices: Mapping[str, Gpu] = MappingProxyType({})
) -> dict[Family, tuple[np.ndarray, Rows]]:
    """Family → (positions in ``frame``, its `Rows`)."""
    from surrogate.dataset.checks import family_rows

    parts = {}
    for kind in families_of(frame):
        positions = np.flatnonzero(family_rows(frame, kind))
        parts[kind] = positions, rows_of(frame.iloc[positions], kind, devices)
    return parts


def _stacked(columns: tuple[Any, ...], length: int) -> np.ndarray:
    """(length, columns) float32 of arrays and constants."""
    out = np.empty((length, len(columns)), dtype=np.float32)
    for position, values in enumerate(columns):
        out[:, position] = values
    return out


def _mechanisms(part: pd.DataFrame, kind: Family, setting: tuple[str, ...]) -> list[tuple[str, np.ndarray]]:
    """(mechanism, positions) of the rows of one setting."""
    by_mechanism: dict[str, list[np.ndarray]] = {}
    for (library, algorithm), members in groups(part, ("library", "algorithm")):
        by_mechanism.setdefault(kind.mechanism(library, setting, algorithm), []).append(members)
    return [(mechanism, np.concatenate(members)) for mechanism, members in by_mechanism.items()]


def _order(frame: pd.DataFrame, kind: Family) -> np.ndarray:
    """(rows,) the candidate's place in its library's registry, behind it where it is not there."""
    order = np.zeros(len(frame), dtype=np.int64)
    names = ("library", *kind.setting_names, "algorithm")
    for (library, *setting, algorithm), positions in groups(frame, names):
        known = [candidate.algorithm for candidate in kind.candidates(library, tuple(setting))]
        order[positions] = known.index(algorithm) if algorithm in known else len(known)
    return order


def fingerprint(rows: Rows) -> str:
    """16 hex digits of what was measured: keys, statuses and times of all rows, whatever their order."""
    columns = [*rows.family.row_key, *(["solver"] if "solver" in rows.frame else []), "status", "time_us"]
    hashes = pd.util.hash_pandas_object(rows.frame[columns], index=False).to_numpy()
    return hashlib.sha256(np.sort(hashes).tobytes()).hexdigest()[:16]
