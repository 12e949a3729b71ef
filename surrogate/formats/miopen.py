"""MIOpen's find-db: per problem, the time and workspace of every solver that MIOpen found to apply.

How to get one: ROCm installs them as ``/opt/rocm/share/miopen/db/gfx*.fdb.txt`` (older releases and the
source tree ship ``.fdb.txt.bz2`` in src/kernels); what a user's own tuning found lies in
``~/.config/miopen/*.ufdb.txt``. Version 1 names one solver per algorithm, version 2 every solver. 3-D
problems are left out.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from surrogate.features.errors import InputError
from surrogate.features.problem import DTYPES, LAYOUTS, SIZE_COLUMNS
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, read_lines
from surrogate.formats.imported import Imported, Progress, plural
from surrogate.formats.miopen_gpu import gpu_of_file
from surrogate.formats.miopen_key import Key, is_volume, parse_key

_EXAMPLE = "64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP32-F=solver:0.1,0,miopenConvolutionFwdAlgoGEMM"


def read(
    paths: Sequence[str | Path],
    *,
    gpu: str | None = None,
    library_version: str | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Progress | None = None,
) -> Imported:
    """Find-db files as dataset rows, one per (problem, solver); only listed solvers are known (``listed``).

    ``gpu`` where the file's name does not say it. ``library_version``: "find-db v1" or "find-db v2" unless
    given. Raises `InputError` naming file and line.
    """
    frames, notes = [], list[str]()
    for path in map(Path, paths):
        named, units = gpu_of_file(path)
        if not (gpu or named):
            raise InputError(
                f"{path}: its name tells no GPU (as gfx90a68.HIP.fdb.txt does); name it with --gpu"
            )
        collected = _collect(path, max_bytes, progress)
        frame = collected.frame(gpu or named, units, "OpenCL" if "opencl" in path.name.lower() else "HIP")
        frames.append(frame if library_version is None else frame.assign(library_version=library_version))
        notes += [
            f"{path.name}: {plural(count, 'line')} left out: {why}"
            for why, count in collected.skipped.items()
        ]
    rows = pd.concat(frames, ignore_index=True)
    key = [
        c for c in rows.columns if c not in ("time_us", "workspace_bytes", "status", "algorithm", "num_cu")
    ]
    kept = rows.drop_duplicates(key, ignore_index=True)
    if len(kept) < len(rows):
        notes.append(
            f"{plural(len(rows) - len(kept), 'repeated row')} left out: the first of a problem and solver"
            " counts"
        )
    return Imported(kept, candidates="listed", notes=tuple(notes))


@dataclass(slots=True)
class _Collected:
    """Columns under construction: each problem once, with how many of the candidates are its own."""

    keys: list[Key] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    solvers: list[str] = field(default_factory=list)
    algorithms: list[str] = field(default_factory=list)
    times_ms: list[float] = field(default_factory=list)
    workspaces: list[int] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def frame(self, gpu: str, units: int | None, backend: str) -> pd.DataFrame:
        """The rows, in the file's order."""
        of = np.repeat(np.arange(len(self.keys)), self.counts)
        sizes = np.array([key.sizes for key in self.keys], dtype=np.int64).reshape(-1, len(SIZE_COLUMNS))[of]
        version = np.array(self.versions, dtype=np.int64)[of]
        time_ms = np.array(self.times_ms, dtype=np.float64)
        ok = time_ms > 0
        columns = {
            "gpu": gpu,
            "library": "miopen",
            "library_version": np.where(version == 1, "find-db v1", "find-db v2"),
            "direction": np.array([key.direction for key in self.keys], dtype=object)[of],
            "dtype": np.array([key.dtype for key in self.keys], dtype=object)[of],
            "math": "fma",
            "layout": np.array([key.layout for key in self.keys], dtype=object)[of],
            **{name: sizes[:, i] for i, name in enumerate(SIZE_COLUMNS)},
            "algorithm": np.array(self.algorithms, dtype=object),
            "solver": np.array(self.solvers, dtype=object),
            "status": np.where(ok, "ok", "failed"),
            "time_us": np.where(ok, time_ms * 1000, np.nan),
            "workspace_bytes": np.array(self.workspaces, dtype=np.int64),
            "out_h": np.array([key.out_h for key in self.keys], dtype=np.int64)[of],
            "out_w": np.array([key.out_w for key in self.keys], dtype=np.int64)[of],
            "bias": np.array([key.bias for key in self.keys], dtype=np.int64)[of],
            "casts": np.array([key.casts for key in self.keys], dtype=object)[of],
            "backend": backend,
            "fdb_version": version,
        }
        if units is not None:
            columns["num_cu"] = units
        return pd.DataFrame(columns)


def _collect(path: Path, max_bytes: int, progress: Progress | None) -> _Collected:
    found = _Collected()
    for number, line in read_lines(path, max_bytes=max_bytes, progress=progress):
        text, mark, values = line.strip().partition("=")
        if not text:
            continue
        where = f"{path}, line {number}"
        key = parse_key(text) if mark else None
        if key is None:
            if not (mark and is_volume(text)):
                raise InputError(f"{where}: {line[:60]!r} is no find-db record; one looks like {_EXAMPLE}")
            found.skipped["3-D problems"] += 1
        elif key.dtype not in DTYPES or key.layout not in LAYOUTS:
            found.skipped[f"layout {key.layout}, type {key.dtype} (a mix, or unknown here)"] += 1
        elif key.wrong:
            raise InputError(f"{where}: {key.wrong}")
        else:
            _add_candidates(found, key, values, where)
    if not found.keys:
        raise InputError(f"{path}: holds no 2-D problem; a find-db line looks like {_EXAMPLE}")
    return found


def _add_candidates(found: _Collected, key: Key, values: str, where: str) -> None:
    """Version 1: ``algorithm:solver,ms,bytes,algorithm,kernel``; version 2: ``solver:ms,bytes,algorithm``."""
    count, version = 0, 2
    for entry in values.split(";"):
        name, _, rest = entry.partition(":")
        cells = rest.split(",")
        if len(cells) > 3:
            version, name, cells = 1, cells[0], [cells[1], cells[2], name]
        try:
            time_ms, workspace, algorithm = float(cells[0]), int(cells[1]), cells[2]
        except (ValueError, IndexError):
            time_ms, workspace, algorithm = math.nan, -1, ""
        if not (math.isfinite(time_ms) and 0 <= workspace < 2**63 and name and "Algo" in algorithm):
            raise InputError(
                f"{where}: candidate {entry[:60]!r}; it must be solver:ms,bytes,…Algo… (version 1 differs)"
            )
        found.solvers.append(name)
        found.algorithms.append(algorithm.rpartition("Algo")[2])
        found.times_ms.append(time_ms)
        found.workspaces.append(workspace)
        count += 1
    found.keys.append(key)
    found.counts.append(count)
    found.versions.append(version)
