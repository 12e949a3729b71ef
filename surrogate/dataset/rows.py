"""`Rows`: a checked table with its features, ready for a model. Built once, sliced often."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from surrogate.dataset.problems import problem_codes, shape_codes, version_number
from surrogate.dataset.schema import SIZE_COLUMNS
from surrogate.features.algorithms import MECHANISM_CODE, LIBRARIES, algorithms, mechanism_of
from surrogate.features.gpu import Gpu, gpu
from surrogate.features.machine import Machine, machine_columns
from surrogate.features.problem import DTYPES, ConvColumns
from surrogate.features.table import FEATURE_NAMES, feature_matrix

CONTEXT_NAMES = ("library", "library_version")
COLUMN_NAMES = (*FEATURE_NAMES, *CONTEXT_NAMES)
"""Columns of `Rows.features`: the physics, then which library of which version measured."""


@dataclass(frozen=True)
class Rows:
    """Rows of one or several datasets as models and judge see them; every array has one entry per row.

    ``features`` (rows, len(COLUMN_NAMES)) float32; ``roofline_us`` of the problem; ``time_us`` NaN where not measured;
    ``ok`` True where it was; ``problem`` and ``shape`` are codes; ``order`` the algorithm's place among its library's
    (ties go to the lowest).
    """

    frame: pd.DataFrame
    features: np.ndarray
    roofline_us: np.ndarray
    time_us: np.ndarray
    ok: np.ndarray
    problem: np.ndarray
    shape: np.ndarray
    order: np.ndarray

    def __len__(self) -> int:
        return len(self.frame)

    def take(self, index: np.ndarray) -> "Rows":
        """The rows at these positions (or where the mask holds)."""
        return Rows(
            self.frame.iloc[np.flatnonzero(index) if index.dtype == bool else index],
            *(getattr(self, name)[index] for name in _ARRAYS),
        )

    def column(self, name: str) -> np.ndarray:
        """One feature by name (rows,)."""
        return self.features[:, COLUMN_NAMES.index(name)]


_ARRAYS = ("features", "roofline_us", "time_us", "ok", "problem", "shape", "order")


def rows_of(frame: pd.DataFrame, devices: Mapping[str, Gpu] = MappingProxyType({})) -> Rows:
    """The features of every row of a normalised frame; ``devices`` are known beside the registry's GPUs.

    Raises `InputError` for an unknown GPU or library.
    """
    gpus, gpu_index = _gpus(frame, devices)
    columns = ConvColumns.of(
        [frame[name] for name in SIZE_COLUMNS],
        **{name: frame[name] for name in ("dtype", "math", "layout", "direction")},
    )
    machine = _machine(frame, columns, gpus, gpu_index)
    named, codes, order = _algorithms(frame)
    matrix, roofline_us = feature_matrix(columns, machine, codes[named], gpus, gpu_index)
    versions = {v: _version_feature(v) for v in frame["library_version"].unique()}
    context = np.column_stack(
        [
            frame["library"].map({name: i for i, name in enumerate(LIBRARIES)}).to_numpy(dtype=np.float32),
            frame["library_version"].map(versions).to_numpy(dtype=np.float32),
        ]
    )
    measured = (
        frame["time_us"].to_numpy(dtype=np.float64) if "time_us" in frame else np.full(len(frame), np.nan)
    )
    status = (frame["status"] == "ok").to_numpy() if "status" in frame else np.isfinite(measured)
    return Rows(
        frame,
        np.hstack([matrix, context]),
        roofline_us,
        measured,
        status & np.isfinite(measured),
        problem_codes(frame),
        shape_codes(frame),
        order[named],
    )


def _gpus(frame: pd.DataFrame, devices: Mapping[str, Gpu]) -> tuple[list[Gpu], np.ndarray]:
    """The distinct GPUs and each row's position among them."""
    names, index = np.unique(frame["gpu"].astype(str).to_numpy(), return_inverse=True)
    return [devices.get(name) or gpu(name) for name in names], index


def _machine(frame: pd.DataFrame, columns: ConvColumns, gpus: list[Gpu], gpu_index: np.ndarray) -> Machine:
    """Machine columns of all rows, looked up once per distinct (GPU, dtype, tensor cores)."""
    names = list(DTYPES)
    dtype_index = frame["dtype"].map({name: i for i, name in enumerate(names)}).to_numpy(dtype=np.int64)
    code = (gpu_index * len(names) + dtype_index) * 2 + columns.uses_tensor_cores
    distinct, index = np.unique(code, return_inverse=True)
    keys = [(gpus[c // 2 // len(names)], names[c // 2 % len(names)], bool(c % 2)) for c in distinct.tolist()]
    return machine_columns(keys, index)


def _algorithms(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows,) index into the distinct algorithms, and their mechanism codes and order in the library."""
    key = ["library", "direction", "algorithm"]
    mechanism, order = [], []
    for library, direction, name in frame[key].drop_duplicates().itertuples(index=False, name=None):
        known = [a.name for a in algorithms(library, direction)]
        mechanism.append(MECHANISM_CODE[mechanism_of(name, library, direction)])
        order.append(known.index(name) if name in known else len(known))
    return frame.groupby(key, sort=False).ngroup().to_numpy(), np.array(mechanism), np.array(order)


def _version_feature(version: str) -> float:
    """A version as one number: 7.6.4 → 7.0604, so that a threshold separates releases."""
    return sum(part / 100.0**place for place, part in enumerate(version_number(version)[:3]))
