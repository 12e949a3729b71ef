"""MIOpen's find-db: for each problem, the time and workspace of every applicable solver.

How to get one: ROCm installs them as ``/opt/rocm/share/miopen/db/gfx*.fdb.txt``. Older releases and the source tree
ship ``.fdb.txt.bz2`` in src/kernels. A user's own tuning writes ``~/.config/miopen/*.ufdb.txt``. Version 1 names one
solver per algorithm, version 2 every solver. Some entries are counted and skipped:

- 3-D problems, also under a 2-D layout (gfx906),
- times of zero,
- solvers and algorithms that are unknown to MIOpen or to this package,
- sizes, types and layouts that a dataset cannot hold.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import pandas as pd

from surrogate.dataset.checks import find_violations, normalise
from surrogate.features import SIZE_COLUMNS, InputError, read_toml, registry
from surrogate.features.algorithms import algorithms
from surrogate.features.gpu import gpu as gpu_by_name
from surrogate.formats import Format
from surrogate.formats.foreign_file import Paths, ReadLimits, read_lines
from surrogate.formats.imported import KEY_COLUMNS, Imported, plural
from surrogate.formats.printed import compiled

_EXAMPLE = "64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP32-F=solver:0.1,0,miopenConvolutionFwdAlgoGEMM"
_ALGORITHMS = frozenset(each.name for each in algorithms("miopen"))


def read(
    paths: Paths, *, gpu: str | None = None, library_version: str | None = None, **limits: Unpack[ReadLimits]
) -> Imported:
    """Read find-db files as dataset rows, one per (problem, solver). The candidates are ``listed``.

    ``gpu`` is needed if the file's name has none. The default ``library_version`` is "find-db v1" or "find-db v2".
    Raises `InputError` for a file without a readable record.
    """
    frames = []
    notes = list[str]()
    for path in map(Path, paths):
        device, units = gpu_of_file(path)
        if not (gpu or device):
            raise InputError(f"{path}: the file's name has no GPU (as gfx90a68.HIP.fdb.txt has); give --gpu")
        if gpu and any(registry().contradicts(gpu, name) for name in (device, device.partition("_")[0])):
            raise InputError(f"{path}: the file's name has the GPU {device}, not {gpu}; give its own board with --gpu")
        left_out = Counter[str]()
        backend = "OpenCL" if "opencl" in path.name.lower() else "HIP"
        frame = _frame(path, left_out, limits).assign(gpu=gpu or gpu_by_name(device).name, backend=backend)
        given = {"num_cu": units, "library_version": library_version}
        frame = frame.assign(**{name: value for name, value in given.items() if value is not None})
        frame = _valid_rows(frame, left_out)
        if frame.empty:
            reasons = "; ".join(f"{why}: {count}" for why, count in left_out.items()) or "it is empty"
            raise InputError(f"{path}: no measured 2-D problem ({reasons}); a line looks like {_EXAMPLE}")
        frames.append(frame)
        notes += [f"{path.name}: {count:,} left out: {why}" for why, count in left_out.items()]
    rows = pd.concat(frames, ignore_index=True)
    distinct = rows.drop_duplicates([*KEY_COLUMNS, "solver"], ignore_index=True)
    repeats = len(rows) - len(distinct)
    note = f"{plural(repeats, 'repeated row')} left out: the first row of a problem and solver counts"
    notes += [note] * bool(repeats)
    if not gpu:
        devices = dict.fromkeys(gpu_of_file(path)[0] for path in paths)
        notes += filter(None, map(registry().ambiguity_note, devices))
    columns = [*KEY_COLUMNS, *(name for name in distinct if name not in KEY_COLUMNS)]
    return Imported(distinct[columns], candidates="listed", notes=tuple(notes))


FORMAT = Format("miopen", "MIOpen find-db, versions 1 and 2, plain or .bz2", read)


def _valid_rows(rows: pd.DataFrame, left_out: Counter[str]) -> pd.DataFrame:
    """Return the rows that are valid in a dataset. The others are counted by the first rule that they break."""
    if rows.empty:
        return rows
    broken = {each.row: f"{each.column}: {each.rule}" for each in reversed(find_violations(normalise(rows, "find-db")))}
    left_out.update(broken.values())
    return rows.drop(index=list(broken))


_CANDIDATE = ["problem", "fdb_version", "solver", "algorithm", "time_us", "workspace_bytes"]
"""Columns of a candidate; ``problem`` is the number of its line."""


def _frame(path: Path, left_out: Counter[str], limits: ReadLimits) -> pd.DataFrame:
    """Return the measured candidates of 2-D problems, in the order of the file."""
    keys: list[Key] = []
    candidates: list[tuple[Any, ...]] = []
    for _, line in read_lines(path, **limits):
        text, _, values = line.strip().partition("=")
        if not text:
            continue
        key = parse_key(text)
        if key is None:
            left_out["3-D problems" if _THREE_D.search(text) else "lines in another notation"] += 1
        elif key.casts:
            left_out[f"type conversions {key.casts}"] += 1
        elif readable := _candidates(len(keys), values, left_out):
            keys.append(key)
            candidates += readable
    rows = pd.DataFrame(candidates, columns=_CANDIDATE)
    sizes = pd.DataFrame([key.sizes for key in keys], columns=list(SIZE_COLUMNS))
    settings = pd.DataFrame(keys, columns=list(Key._fields)).drop(columns=["sizes", "casts"])
    problems = sizes.join(settings).iloc[rows.pop("problem").astype(int)].reset_index(drop=True)
    return pd.concat([problems, rows], axis=1).assign(
        library="miopen", library_version="find-db v" + rows["fdb_version"].astype(str), math="fma", status="ok"
    )


def _candidates(problem: int, values: str, left_out: Counter[str]) -> list[tuple[Any, ...]]:
    """Parse a line's entries.

    Version 1 is ``algorithm:solver,ms,bytes,algorithm,kernel``; version 2 is ``solver:ms,bytes,algorithm``.
    """
    readable = []
    for entry in values.split(";"):
        name, _, rest = entry.partition(":")
        cells = rest.split(",")
        version = 2
        if len(cells) > 3:
            version, name, cells = 1, cells[0], [cells[1], cells[2], name]
        try:
            time_ms, workspace, algorithm = float(cells[0]), int(cells[1]), cells[2]
        except (ValueError, IndexError):
            left_out["entries other than solver:ms,bytes,algorithm"] += 1
            continue
        algorithm = algorithm.rpartition("Algo")[2]
        if not name or name.startswith("INVALID_SOLVER_ID"):  # MIOpen's own mark of an unknown solver
            left_out["unknown solvers"] += 1
        elif algorithm not in _ALGORITHMS:
            left_out["unknown algorithms"] += 1
        elif not 0 < time_ms < math.inf:
            left_out["times that are not above 0"] += 1
        elif not 0 <= workspace < 2**63:
            left_out["workspaces out of range"] += 1
        else:
            readable.append((problem, version, name, algorithm, time_ms * 1e3, workspace))
    return readable


DIRECTIONS = {"F": "fwd", "B": "bwd_data", "W": "bwd_filter"}
_KEY, _GROUPS, _THREE_D, _GPU_NAME = compiled(read_toml(__file__)["patterns"])
DTYPES = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16", "FP64": "fp64", "INT8": "int8"}


class Key(NamedTuple):
    """A 2-D problem: *forward* ``sizes`` in the order of `SIZE_COLUMNS`; ``casts`` are MIOpen's type conversions."""

    sizes: tuple[int, ...]
    out_h: int
    out_w: int
    bias: int
    layout: str
    dtype: str
    direction: str
    casts: str


def parse_key(text: str) -> Key | None:
    """Return the key of a 2-D problem, or None for another text.

    The line names the operation's own input first. For backward data and backward filter, that is the forward *output*
    (k, out h, out w); the forward input then has the place of the output. Source: MIOpen's
    ProblemDescription::Serialize. If input, filter and output share a layout, it is named once.
    """
    match = _KEY.fullmatch(text)
    if not match:
        return None
    numbers = [int(value) for value in match.groups()[:16]]
    c, h, w, r, s, k, out_h, out_w, n = numbers[:9]
    if match[19] != "F":
        c, h, w, k, out_h, out_w = k, out_h, out_w, c, h, w
    layouts = match[17].split("-")
    groups = _GROUPS.search(match[20])
    sizes = (n, c, h, w, k, r, s, *numbers[9:15], int(groups[1]) if groups else 1)
    layout = layouts[0] if len(set(layouts)) == 1 else match[17]
    dtype, casts = DTYPES.get(match[18], match[18].lower()), _GROUPS.sub("", match[20])
    return Key(sizes, out_h, out_w, numbers[15], layout, dtype, DIRECTIONS[match[19]], casts)


def gpu_of_file(path: str | Path, gpu: str = "") -> tuple[str, int | None]:
    """Return (``gpu`` or the architecture and units of a file's name, these units), or ("", None).

    ``gfx90a68.HIP.fdb.txt`` is the MI210 with 0x68 = 104 units. The units follow the architecture in hexadecimal, or in
    decimal after an underscore. RDNA's count work-group processors. Source: MIOpen's GetDbBasename.
    """
    match = _GPU_NAME.search(Path(path).name)
    if not match:
        return gpu, None
    architecture = f"gfx{match[1].lower()}"
    units = int(match[2]) if match[2] else int(match[3], 16) if match[3] else None
    return gpu or (architecture if units is None else f"{architecture}_{units}"), units
