"""`Rows`: a checked table of one family, with the feature columns for a model. It is built once and sliced often."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

import numpy as np
import pandas as pd

from surrogate.dataset import problems
from surrogate.features.algorithms import version_column
from surrogate.features.elementwise import Number
from surrogate.features.errors import InputError, UnknownGpuError
from surrogate.features.families import DescribedFamily, Family
from surrogate.features.gpu import Gpu, gpu, unlisted_gpu

CONTEXT_NAMES = ("library_version",)
"""Feature columns of a model besides the family's: the library's version."""
UNRANKED = 1_000_000
"""Rank of a candidate that the library's heuristic does not list."""


@dataclass(frozen=True)
class Rows:
    """Rows of one family, for models and the evaluation. Every array has one entry per row.

    - ``features``: (rows, len(column_names)) float32; ``roofline_us``: of the problem; ``workspace_bytes``: of the
      candidate,
    - ``time_us``: NaN if not measured; ``ok``: True if measured; ``candidate``: its name,
    - ``problem``, ``shape``: codes; ``stratum``: its name,
    - ``order``: the candidate's position in its library's list; ties go to the lowest position,
    - ``devices``: name → device that the table's own metadata describes.
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

    def device(self, name: str) -> Gpu:
        """Return a GPU of the rows. With a described kernel, the registry need not have it."""
        return self.devices.get(name) or _gpu_by_name(name, self.frame, self.family)

    @property
    def sizes(self) -> np.ndarray:
        """Return (rows, sizes) int64, in the order of the family's ``size_names``."""
        return self.frame[list(self.family.size_names)].to_numpy(dtype=np.int64)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Return the names of the columns of ``features``."""
        return (*self.family.column_names, *CONTEXT_NAMES)

    def take(self, index: np.ndarray | Sequence[int]) -> "Rows":
        """Return the rows at these positions, or of a boolean mask."""
        index = np.asarray(index)
        positions = np.flatnonzero(index) if index.dtype == bool else index
        arrays = (getattr(self, field.name)[positions] for field in fields(self)[2:-1])
        return Rows(self.family, self.frame.iloc[positions], *arrays, devices=self.devices)

    def column(self, name: str) -> np.ndarray:
        """Return the column ``name`` of ``features``, (rows,)."""
        return self.features[:, self.column_names.index(name)]

    def columns(self, names: Sequence[str]) -> np.ndarray:
        """Return columns of ``features`` by name, (rows, len(names)) float32."""
        places = {name: position for position, name in enumerate(self.column_names)}
        return self.features[:, [places[name] for name in names]]


def _gpu_by_name(device: str, rows: pd.DataFrame, family: Family) -> Gpu:
    """Return the registry's GPU; with a described kernel, an unlisted GPU if the registry lacks it.

    Raises `InputError` for an unknown GPU. For a CPU the message states where its description is.
    """
    try:
        return gpu(device)
    except UnknownGpuError:
        if isinstance(family, DescribedFamily):
            return unlisted_gpu(device)
        if "library" in rows and (rows["library"] == "reference").all():
            raise InputError(f"{device!r} is a CPU that only its run's .parquet describes; give that file") from None
        raise


def rows_of(
    table: pd.DataFrame | Rows, family: Family | None = None, devices: Mapping[str, Gpu] = MappingProxyType({})
) -> Rows:
    """Return the rows of a normalised table of one family, with their features.

    ``devices`` are used in addition to the registry's GPUs. `Rows` are returned unchanged. Raises `InputError` for an
    unknown GPU, or a table of several families.
    """
    if isinstance(table, Rows):
        return table
    if family is None:
        families = problems.families_of(table)
        if len(families) != 1:
            names = ", ".join(each.name for each in families)
            raise InputError(f"a table of one family is needed; this one has {names}")
        family = families[0]
    frame = table
    features, roofline_us, workspace_bytes = _computed(frame, family, devices)
    versions = {version: version_column(version) for version in frame["library_version"].unique()}
    features[:, -1] = frame["library_version"].map(versions)
    times = frame["time_us"] if "time_us" in frame else pd.Series(np.nan, index=frame.index)
    times_us = times.to_numpy(dtype=np.float64)
    ok = (frame["status"] == "ok").to_numpy() if "status" in frame else np.isfinite(times_us)
    return Rows(
        family=family,
        frame=frame,
        features=features,
        roofline_us=roofline_us,
        workspace_bytes=workspace_bytes,
        time_us=times_us,
        ok=ok & np.isfinite(times_us),
        candidate=problems.candidate_names(frame, family),
        problem=problems.problem_codes(frame, family),
        shape=problems.shape_codes(frame, family),
        stratum=problems.strata(frame, family),
        order=_order(frame, family),
        devices=devices,
    )


def _computed(
    frame: pd.DataFrame, family: Family, devices: Mapping[str, Gpu]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``features`` of every row without the context columns, roofline times and workspaces, as in `Rows`."""
    # The columns of `features` from left to right: problem, candidate, constants of setting and GPU, context.
    features = np.empty((len(frame), len(family.column_names) + len(CONTEXT_NAMES)), dtype=np.float32)
    roofline_us = np.empty(len(frame))
    workspace_bytes = np.zeros(len(frame))
    candidate_columns = slice(len(family.problem_names), len(family.problem_names) + len(family.candidate_names))
    # 1. One formula serves all rows of a setting on a GPU.
    for (device, *values), positions in problems.row_groups(frame, ("gpu", *family.setting_names)):
        setting = tuple(values)
        part = frame.iloc[positions]
        formula = family.formula(setting, devices.get(device) or _gpu_by_name(device, part, family))
        terms = formula.problem(problems.problems_of(part, family, setting))
        features[positions, : candidate_columns.start] = _stacked(terms.values, len(part))
        features[positions, candidate_columns.stop : -len(CONTEXT_NAMES)] = formula.constant
        roofline_us[positions] = terms.roofline_us
        if not family.candidate_names:
            continue
        if isinstance(family, DescribedFamily):
            code, texts = pd.factorize(part["solver"])
            columns, _ = formula.candidate(terms, family.configurations(list(texts))[code])
            features[positions, candidate_columns] = _stacked(columns, len(part))
            continue
        # 2. The candidates' own columns, mechanism by mechanism.
        for mechanism, members in _mechanisms(part, family, setting):
            member_terms = formula.problem(problems.problems_of(part.iloc[members], family, setting))
            columns, bytes_needed = formula.candidate(member_terms, mechanism)
            frame_positions = positions[members]  # positions in the frame, not in the rows of the setting
            features[frame_positions, candidate_columns] = _stacked(columns, len(frame_positions))
            workspace_bytes[frame_positions] = bytes_needed
    return features, roofline_us, workspace_bytes


def rows_by_family(
    frame: pd.DataFrame, devices: Mapping[str, Gpu] = {}, described_family: Family | None = None
) -> dict[Family, tuple[np.ndarray, Rows]]:
    """Return family → (positions in ``frame``, its `Rows`); ``described_family`` as in `problems.families_of`."""
    parts = {}
    for family in problems.families_of(frame, described_family):
        positions = np.flatnonzero(problems.family_rows(frame, family))
        parts[family] = positions, rows_of(frame.iloc[positions], family, devices)
    return parts


def _stacked(columns: tuple[Number, ...], length: int) -> np.ndarray:
    """Return (length, columns) float32 of arrays and constants."""
    out = np.empty((length, len(columns)), dtype=np.float32)
    for position, values in enumerate(columns):
        out[:, position] = values
    return out


def _mechanisms(part: pd.DataFrame, family: Family, setting: tuple[str, ...]) -> list[tuple[str, np.ndarray]]:
    """Return (mechanism, positions) for the rows of one setting."""
    by_mechanism: dict[str, list[np.ndarray]] = {}
    for (library, algorithm), members in problems.row_groups(part, ("library", "algorithm")):
        by_mechanism.setdefault(family.mechanism(library, setting, algorithm), []).append(members)
    return [(mechanism, np.concatenate(members)) for mechanism, members in by_mechanism.items()]


def _order(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) the candidate's position in its library's list; others follow by their ``heuristic_rank``."""
    order = np.zeros(len(frame), dtype=np.int64)
    ranks = frame["heuristic_rank"].fillna(UNRANKED).to_numpy(np.int64) if "heuristic_rank" in frame else 0 * order
    names = ("library", *family.setting_names, "algorithm")
    for (library, *setting, algorithm), positions in problems.row_groups(frame, names):
        registered = [candidate.algorithm for candidate in family.candidates(library, tuple(setting))]
        is_registered = algorithm in registered
        order[positions] = registered.index(algorithm) if is_registered else len(registered) + ranks[positions]
    return order


def fingerprint(rows: Rows) -> str:
    """Return 16 hex digits that identify the measurements: keys, statuses and times of all rows, in any order.

    They include the description of a described kernel, because its formulas are columns of a fit.
    """
    columns = [*rows.family.row_key, *(["solver"] if "solver" in rows.frame else []), "status", "time_us"]
    hashes = pd.util.hash_pandas_object(rows.frame[columns], index=False).to_numpy()
    own = repr(rows.family.description.to_dict()) if isinstance(rows.family, DescribedFamily) else ""
    return hashlib.sha256(np.sort(hashes).tobytes() + own.encode()).hexdigest()[:16]
