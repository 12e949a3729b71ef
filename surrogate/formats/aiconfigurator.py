"""Kernel times of vLLM, SGLang and TensorRT-LLM on data-centre GPUs, which ai-dynamo/aiconfigurator publishes.

How to get them, on Python 3.11 to 3.13: pip install 'seer-surrogate[measurements]'. To keep NumPy below 2.1, install
the package without its dependencies, which the tables do not need:

    pip install --no-deps aiconfigurator-core==0.12.0

On another Python or system, fetch the wheel and give it as PATH:

    pip download --no-deps --only-binary :all: --python-version 3.13 --platform manylinux_2_28_x86_64 \\
        aiconfigurator-core==0.12.0

Then `seer import aiconfigurator --family gemm -o gemm.parquet` finds them; the package is never imported. PATH may also
be a wheel file, an unpacked folder of its tables, or a checkout of the repository. Families: gemm, attention, mla, moe,
transfer (collective operations), quantise. One file holds one family.

- The newest version of each (GPU, problem, library) counts, as in the judgement of choices. A problem that only an
  older version measured is kept. Repeats become their median, in µs.
- Rows at the floor of a harness are removed: their times do not depend on the problem, and exceed the times of other
  candidates by far (`without_floors` has the rule). Slower rows of such a candidate are kept. The metadata counts the
  removed rows by candidate, under ``floors``.
- Mixtures of experts that an autotuner left with a slow kernel are removed (`is_tuned` has the rule).
- Collectives of a machine whose long messages are far slower than the links of its GPUs are removed: these GPUs have no
  access to one another, and other machines with the same GPUs do (`with_peer_access` has the rule).
- Column ``spike`` marks a time that is over 8 % slower, or faster, than both its neighbours along the running size.
- The metadata holds ``noise``, and ``noise_by`` for each GPU, library, type and decade of time: the relative difference
  below which two times are equal. It is estimated from the distance of times to the line through their neighbours.
- Tables of whole modules, of communication between nodes and of kernels without a family are not imported. The metadata
  counts their rows by name.
"""

import io
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from surrogate.dataset.files import Progress
from surrogate.dataset.problems import codes, newest_version, problems_of, row_groups
from surrogate.features import MAX_EXACT, MAX_INT32, InputError, UnknownGpuError, checked_int, nearest, read_toml
from surrogate.features.families import Family, family as family_by_name
from surrogate.features.families.moe import BALANCED, NONGATED
from surrogate.features.gpu import gpu
from surrogate.formats import Format, Option
from surrogate.formats.foreign_file import Allowance, unpacked
from surrogate.formats.imported import Imported, plural, rows_within

PACKAGE = "aiconfigurator_core"
ENDING = "_perf.parquet"
MAX_BYTES = 2 << 30
"""Maximum unpacked size of a wheel's tables, and of the values of one table."""
REMEDY = "`seer import aiconfigurator --how` says how to get one"
_CONTENT = read_toml(__file__)
GPUS: dict[str, str] = _CONTENT["gpus"]
"""Folder → name in the registry, if the registry does not have the folder's name."""
COLUMNS: dict[str, str] = _CONTENT["columns"]
"""Column of a table → column of a dataset. Other columns keep their name."""
NAMES: dict[str, str] = _CONTENT["names"]
"""Element type or operator of a table → name in a dataset. Others keep their name."""
TABLES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    name: (shared.pop("family"), shared) for name, shared in _CONTENT["tables"].items()
}
"""Name of a table (without its ending) → its family, and the values that all its rows share."""
_ZIP_ERRORS = (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, MemoryError, struct.error)
"""Exceptions that a damaged archive, or a damaged table in it, may raise."""


class SourceTable(NamedTuple):
    """One table: its path (which names GPU, framework, version and table), its size in bytes, and its loader."""

    path: str
    size: int
    load: Callable[[], bytes]

    @property
    def place(self) -> tuple[str, str, str, str]:
        """The folder of the GPU, the framework, its version, and the name of the table."""
        folder, _, framework, version, name = PurePath(self.path).parts[-5:]
        return folder, framework, version, name.removesuffix(ENDING)


def read(
    paths: Sequence[str | Path], *, family: str, gpus: Sequence[str] | None = None, progress: Progress | None = None
) -> Imported:
    """Read the rows of one family, on all GPUs or on ``gpus``.

    Raises `InputError` for a missing or damaged file.
    """
    if len(paths) > 1:
        raise InputError(f"{len(paths)} paths given; give one wheel or folder, or no path")
    path = Path(paths[0]) if paths else _installed()
    sources, version = _sources(path)
    chosen = family_by_name(family)
    names = {folder: _gpu_name(folder) for folder in sorted({source.place[0] for source in sources})}
    if gpus:
        requested = _requested(gpus, names)
        names = {folder: name for folder, name in names.items() if name in requested}
    # 1. Tables of the family become rows. Tables of unknown GPUs and tables without a family are counted.
    left_out = Counter[str]()
    foreign = Counter[str]()
    parts = []
    families = {"", chosen.name}
    sources = [s for s in sources if s.place[0] in names and TABLES.get(s.place[-1], ("", {}))[0] in families]
    done = 0
    total = sum(source.size for source in sources)
    for source in sources:
        folder, *_, table = source.place
        name = names[folder]
        if table not in TABLES:
            foreign[table] += len(_table(source, rows_only=True))
        elif name is None:
            left_out[f"GPU {folder} unknown"] += len(_table(source, rows_only=True))
        else:
            parts.append(_rows(_table(source), source, name, chosen))
        done += source.size
        if progress:
            progress(done, total, table)
    if not parts:
        readable = ", ".join(dict.fromkeys(name for name, _ in TABLES.values()))
        raise InputError(f"{path}: no table of family {chosen.name} on a known GPU; families: {readable}")
    # 2. One frame, cleaned.
    columns = {name: _joined([part[name] for part in parts]) for name in parts[0].columns}
    frame, quality = _cleaned(pd.DataFrame(columns), chosen, left_out)
    origin = " at ".join(filter(None, ("ai-dynamo/aiconfigurator", _CONTENT["commits"].get(version))))
    notices = [f"Measurements of {origin}, aiconfigurator-core {version} (Apache-2.0)."]
    notes = (
        f"rows of {_listed(frame['gpu'].value_counts())}",
        f"left out: {_listed(left_out) or 'nothing'}",
        f"tables not imported: {_listed(foreign) or 'none'}",
        f"{plural(quality['spikes'], 'spike')}; noise {quality['noise']:.1%}",
    )
    metadata = {**quality, "licence_notices": notices, "left_out": dict(+left_out), "not_imported": dict(foreign)}
    return Imported(frame, candidates="listed", notes=notes, metadata=metadata)


_SUMMARY = "kernels of vLLM, SGLang and TensorRT-LLM: its wheel's tables"
_FAMILY = Option("For aiconfigurator: the family of kernels to import.", "F")
FORMAT = Format("aiconfigurator", _SUMMARY, read, extra_options={"family": _FAMILY}, finds_files=True)


def _cleaned(frame: pd.DataFrame, family: Family, left_out: Counter[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the rows of a dataset, and their quality for the metadata. ``left_out`` counts removed rows by reason."""
    times = frame["time_us"].to_numpy()
    rules = {"time is not a number above 0": np.isfinite(times) & (times > 0)}
    for name in [name for name, values in family.settings.items() if values]:
        for value in set(frame[name].cat.categories) - set(family.settings[name]):
            rules[f"{name} {value} unknown"] = (frame[name] != value).to_numpy()
    for size in family.sizes:
        rules[f"{size.name} out of range"] = frame[size.name].between(size.minimum, MAX_INT32).to_numpy()
    frame = frame[rows_within(rules, left_out)]
    if "routing" in frame:
        frame = frame[rows_within({"the kernel was not tuned": is_tuned(frame, family)}, left_out)]
    frame, older = newest(frame, family)
    left_out["a newer version measured the problem"] += older
    frame, floors = without_floors(frame, family)
    left_out["at the floor of a harness"] += sum(record["rows"] for record in floors)
    if "ranks" in frame:
        rules = {"of a machine without access between its GPUs": with_peer_access(frame, family)}
        frame = frame[rows_within(rules, left_out)]
    if frame.empty:
        raise InputError(f"no row of family {family.name} is left: {_listed(left_out)}")
    spike, distance = along_lines(frame, family)
    quality: dict[str, Any] = {"noise": noise_of(distance), "noise_by": noise_records(frame, distance)}
    quality |= {"floors": floors, "spikes": int(spike.sum())}
    return frame.assign(spike=spike).reset_index(drop=True), quality


def _listed(counts: Mapping[str, int] | pd.Series) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def _installed() -> Path:
    """Return the folder of the installed package. The package is not imported: that would load its estimators."""
    module = find_spec(PACKAGE)
    if module is None or not module.submodule_search_locations:
        raise InputError(f"no PATH given, and aiconfigurator-core is not installed; {REMEDY}")
    return Path(module.submodule_search_locations[0])


def _sources(path: Path) -> tuple[list[SourceTable], str]:
    """Return the tables in a wheel or below a folder, and the package's version if a file name has it."""
    try:
        if path.is_file():
            wheel = zipfile.ZipFile(path)
            files = wheel.infolist()
            limit = Allowance(path, path.stat().st_size, MAX_BYTES)
            sources = [SourceTable(f.filename, f.file_size, partial(unpacked, wheel, f.filename, limit)) for f in files]
            infos = [path.name]
        else:
            root = next((path / name for name in _CONTENT["folders"] if (path / name).is_dir()), path).resolve()
            sources = [SourceTable(str(f), f.stat().st_size, f.read_bytes) for f in root.rglob(f"*{ENDING}")]
            infos = [each.name for above in root.parents[:3] for each in above.glob(f"{PACKAGE}-*.dist-info")]
    except _ZIP_ERRORS as error:
        raise InputError(f"{path}: cannot be read as a wheel or folder ({error}); {REMEDY}") from None
    sources = [s for s in sources if s.path.endswith(ENDING) and len(PurePath(s.path).parts) >= 5]
    sources.sort(key=lambda source: PurePath(source.path).parts)
    if not sources:
        what = "a wheel or folder without" if path.exists() else "cannot be read; give a wheel or folder with"
        raise InputError(f"{path}: {what} GPU/FAMILY/FRAMEWORK/VERSION/*{ENDING}; {REMEDY}")
    versions = [name.removesuffix(".dist-info").split("-")[1] for name in infos if "-" in name]
    return sources, versions[0] if versions else "of unknown version"


def _gpu_name(folder: str) -> str | None:
    try:
        return gpu(GPUS.get(folder, folder)).name
    except UnknownGpuError:
        return None


def _requested(gpus: Sequence[str], names: Mapping[str, str | None]) -> set[str | None]:
    """Return the registry names of ``gpus``. Raises `InputError` if one is not among ``names``."""
    available = sorted(name for name in names.values() if name)
    for name in gpus:
        if _gpu_name(name) not in available:
            hint = f"GPUs with one: {', '.join(available)}{nearest(name, available)}"
            raise InputError(f"--gpu {name} has no table; {hint}")
    return {_gpu_name(name) for name in gpus}


def _table(source: SourceTable, rows_only: bool = False) -> pd.DataFrame:
    """Read a table with its texts as categories. With ``rows_only`` it has no columns, only its length."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = io.BytesIO(source.load())
        file = pq.ParquetFile(content)
        if 8 * file.metadata.num_rows * file.metadata.num_columns > MAX_BYTES:
            raise ValueError(f"the file declares {file.metadata.num_rows:,} rows")
        kinds = (pa.string(), pa.large_string())
        texts = [column.name for column in file.schema_arrow if column.type in kinds]
        table = pq.read_table(content, columns=[] if rows_only else None, read_dictionary=texts)
        return table.to_pandas(ignore_metadata=True)
    except (pa.ArrowException, zlib.error, *_ZIP_ERRORS) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise InputError(f"{source.path}: cannot be read as parquet ({reason}); fetch it again") from None


def _rows(table: pd.DataFrame, source: SourceTable, name: str, family: Family) -> pd.DataFrame:
    """Return the dataset columns of one table: texts as categories, sizes as the narrowest sufficient integers."""
    _, library, version, place = source.place
    try:
        values: dict[str, Any] = {**family.setting_defaults, "math": "default", "library": library}
        values |= {COLUMNS.get(str(column), str(column)): table[column] for column in table}
        values |= {**TABLES[place][1], "gpu": name, "library_version": version}
        values |= {"family": family.name, "status": "ok", **_special(table, place, version)}
        if "query_length" in values:
            length = values["query_length"] + values.get("step", 0)
            values = {"kv_heads": values["heads"], "window": 0, **values, "context_length": length}
        if values.get("phase") == "encoder":
            values["kv_dtype"] = values["dtype"]
        columns = {}
        for name in ("family", "status", *family.row_key):
            is_size = name in family.size_names
            columns[name] = _sizes(name, values[name], len(table)) if is_size else _texts(values[name], len(table))
        return pd.DataFrame(columns).assign(time_us=table["latency"].to_numpy(dtype=np.float64) * 1e3)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        reason = f"column {error} is missing" if isinstance(error, KeyError) else error
        raise InputError(f"{source.path}: {reason}; give the tables of version 0.12") from None


def _special(table: pd.DataFrame, name: str, version: str) -> dict[str, object]:
    """Return the columns that a table needs beyond a renaming of its own."""
    if name == "mla_bmm":  # projections that decoding absorbs: one product per head, to 512 latent columns or back
        is_query = (table["op_name"] == "mla_gen_pre").to_numpy()
        n, k = np.where(is_query, 512, 128), np.where(is_query, 128, 512)
        return {"batch": table["num_heads"], "m": table["num_tokens"], "n": n, "k": k}
    if name == "moe" and version not in _CONTENT["always_gated"]:
        layers = [*map(tuple, _CONTENT["nongated_layers"])]
        nongated = pd.MultiIndex.from_frame(table[["hidden_size", "inter_size"]]).isin(layers)
        return {"variant": pd.Series(pd.Categorical.from_codes(nongated.astype(np.int8), pd.Index(["", NONGATED])))}
    if name in ("nccl", "oneccl"):
        return {"operator": table["op_name"]}
    if name == "custom_allreduce":  # a folder may hold a copy of another framework's table
        return {"library": table["framework"].str.lower()}
    return {"n": table["m"], "c": table["k"]} if name == "scale_matrix" else {}


def _texts(values: Any, rows: int) -> Any:
    """Return a categorical of one text for all rows, or of one text per row. Raises `ValueError` for a missing one."""
    if isinstance(values, str):
        return pd.Categorical.from_codes(np.zeros(rows, dtype=np.int8), pd.Index([values]))
    code, distinct = pd.factorize(values)
    if (code < 0).any():
        raise ValueError(f"{values.name} is empty in a row")
    return pd.Categorical(np.array([NAMES.get(text, str(text)) for text in distinct], dtype=object)[code])


def _sizes(name: str, values: object, rows: int) -> np.ndarray:
    """Return one integer for all rows, or one per row, in the narrowest sufficient type."""
    sizes = checked_int("its table", name, np.broadcast_to(np.asarray(values), rows), minimum=-MAX_EXACT)
    return sizes.astype(np.int32) if np.abs(sizes).max(initial=0) <= MAX_INT32 else sizes


def _joined(parts: Sequence[pd.Series]) -> Any:
    """Concatenate a column of all parts, and unite its categories."""
    if isinstance(parts[0].dtype, pd.CategoricalDtype):
        return pd.api.types.union_categoricals([pd.Categorical(part) for part in parts])
    return np.concatenate([part.to_numpy() for part in parts])


# Cleaning: newest versions, repeats, harness floors, spikes and noise. The functions take a frame of one family with
# the columns of a dataset. Text columns should be pandas categories, which group fast. A *line* is one candidate on
# problems that differ in the running size only: m of a matrix product, the length of a context, tokens, elements.
_RULES = SimpleNamespace(**_CONTENT["cleaning"])
"""Limits of the cleaning. The TOML file of this module explains them."""


def newest(frame: pd.DataFrame, family: Family) -> tuple[pd.DataFrame, int]:
    """Keep the newest library version of each problem and candidate, with the median of repeats.

    The judgement of choices uses the same rule. A version that measured some of the problems replaces older rows of
    those problems only. Returns the frame and the number of superseded rows.
    """
    is_newest = newest_version(frame, family)
    frame = frame[is_newest]
    # The median is slow, so it is taken of repeated rows only.
    row = pd.Series(codes(frame, (*family.problem_key, "library", "algorithm")))
    again = row.duplicated(keep=False).to_numpy()
    times = frame["time_us"].to_numpy(copy=True)
    times[again] = pd.Series(times[again]).groupby(row[again].to_numpy()).transform("median")
    return frame.assign(time_us=times)[~row.duplicated().to_numpy()], int((~is_newest).sum())


def without_floors(frame: pd.DataFrame, family: Family) -> tuple[pd.DataFrame, list[dict[Hashable, Any]]]:
    """Remove the rows at a harness floor; return the other rows, and a record per candidate with a floor.

    If a harness launches kernels one by one, or adds a step of its own, it times every small problem alike. A candidate
    is (GPU, library, algorithm, operator, element types, phase). It has a floor if two conditions hold. The 2 %
    quantile of its times exceeds 4 times the smallest such quantile of the same GPU, operator and phase. Its 25 %
    quantile is below 1.6 times its own 2 % quantile: times of slow kernels grow with the problem, a floor does not.
    Rows up to twice the floor (``limit_us`` of the record) are removed, and rows over 4 times the fastest candidate's
    time of the problem. Other rows are kept.
    """
    # 1. Low and middle quantile of each candidate: (candidates,).
    names = [name for name in family.setting_names if name in ("operator", "dtype", "phase", "kv_dtype")]
    candidate = ["gpu", "library", "algorithm", *names]
    grouped = frame.groupby(candidate, sort=False, observed=True)
    low = grouped["time_us"].quantile(_RULES.floor_quantile)
    flat = grouped["time_us"].quantile(_RULES.flat_quantile) < _RULES.flat_ratio * low
    enough = grouped.size() >= _RULES.floor_rows
    # 2. Flat candidates far above the fastest one of their GPU, operator and phase.
    kernel_group = [name for name in candidate if name in ("gpu", "operator", "phase")]
    minimum = low[enough].groupby(kernel_group, observed=True).transform("min").reindex(low.index)
    floors = low[enough & flat & (low > _RULES.floor_ratio * minimum)]
    # 3. Their rows up to twice the floor, and their rows far above another candidate. All other limits are 0.
    code = grouped.ngroup().to_numpy()
    limit = (_RULES.at_floor * low.where(low.index.isin(floors.index), 0.0).to_numpy())[code]
    time_us = frame["time_us"].to_numpy()
    fastest = pd.Series(time_us).groupby(codes(frame, family.problem_key)).transform("min").to_numpy()
    floored = (time_us <= limit) | ((limit > 0) & (time_us > _RULES.floor_ratio * fastest))
    counts = np.bincount(code[floored], minlength=len(low))
    limits = (_RULES.at_floor * low).to_numpy()
    records = low.round(2).rename("floor_us").reset_index().assign(limit_us=limits, rows=counts)
    return frame[~floored], records[counts > 0].to_dict("records")


def is_tuned(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) False for experts that an autotuner left with a slow kernel; a server tunes its kernels.

    - A candidate was never tuned if its long problems take over 4 times the share of the roofline time that the best
      candidate of its GPU and type takes: CUTLASS experts in vLLM and SGLang on Hopper.
    - A candidate was tuned by chance if runs under two power laws, whose loads are nearly equal, differ by the factor
      ``untuned_ratio`` in one run of a hundred: TensorRT-LLM's CUTLASS experts on Hopper. Its slow runs take over this
      factor of the time of a run with more work, or of a run with less work at the same share of the roofline time.
    """
    candidate = ["gpu", "library", "algorithm", "dtype", "variant"]
    run = [name for name in family.row_key if name != "tokens"]
    roofline_us = _roofline_us(frame, family)
    rows = frame.assign(roofline_us=roofline_us, ratio=frame["time_us"].to_numpy() / roofline_us)
    # 1. Candidates that were never tuned, and candidates that were tuned by chance.
    long = rows[roofline_us > _RULES.long_roofline_us].groupby(candidate, observed=True)["ratio"]
    low = long.quantile(_RULES.tuned_quantile)
    never = low[low > _RULES.floor_ratio * low.groupby(["gpu", "dtype"], observed=True).transform("min")]
    any_routing = [name for name in run if name != "routing"]
    drawn = rows[(rows["routing"] != BALANCED).to_numpy()].groupby([*any_routing, "tokens"], observed=True)["time_us"]
    differs = (drawn.max() / drawn.min()).groupby(any_routing, observed=True).median() > _RULES.untuned_ratio
    share = differs.groupby(candidate, observed=True).mean()
    by_chance = share[share > _RULES.untuned_share]
    # 2. Slow runs of the latter: a run's median over tokens. Runs are in the order of their work.
    number = pd.MultiIndex.from_frame(rows[candidate])
    rows = rows.assign(position=np.arange(len(rows)))[number.isin(by_chance.index)].sort_values("roofline_us")
    peers = [*candidate, "tokens", "hidden", "inter", "topk", "experts"]
    more_us = rows[::-1].groupby(peers, observed=True)["time_us"].cummin()
    less_us = rows.groupby(peers, observed=True)["ratio"].cummin() * rows["roofline_us"]
    slowdown = rows["time_us"] / np.minimum(more_us, less_us)
    is_slow = slowdown.groupby([rows[name] for name in run], observed=True).transform("median") > _RULES.untuned_ratio
    tuned = ~number.isin(never.index)
    tuned[rows["position"][is_slow]] = False
    return tuned


def _roofline_us(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) the roofline time of each row's problem."""
    out = np.empty(len(frame))
    for (name, *values), positions in row_groups(frame, ("gpu", *family.setting_names)):
        problem: Any = problems_of(frame.iloc[positions], family, tuple(values))
        out[positions] = problem.roofline_us(gpu(name))
    return out


def with_peer_access(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return (rows,) False for collectives on a machine whose GPUs have no access to one another.

    On such a (GPU, ranks), no message over ``long_us`` reaches ``min_link_share`` of the datasheet's links. Source: 8
    L40S reach 7 % of their PCIe with four libraries; eight RTX PRO 6000, also without NVLink, 39 %.
    """
    shares = pd.Series(_roofline_us(frame, family), frame.index) / frame["time_us"]
    machine = [frame[name] for name in ("gpu", "ranks")]
    best = shares.where(frame["time_us"] > _RULES.long_us).groupby(machine, observed=True)
    return ~(best.transform("max") < _RULES.min_link_share).to_numpy()


def along_lines(frame: pd.DataFrame, family: Family) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows,) True at spikes and dips, and (rows,) the log distance to the line through both neighbours.

    A spike is over 8 % slower than both its neighbours along the running size; a dip is over 8 % faster. The line is
    straight in log time over log size. The distance is NaN at the ends of a line, and if the neighbours' sizes differ
    by more than the factor ``near``. Odd m form separate lines: unaligned rows are slower, but not spikes.
    """
    running = [name for name in family.size_names if name in _RULES.running_sizes] or [family.size_names[0]]
    key = [name for name in family.row_key if name not in (*running, "library_version") and name in frame]
    sizes = frame[running].to_numpy(dtype=np.int64)
    subline = sizes[:, -1] - sizes[:, 0]  # tokens in the cache, in phases that fill it
    subline = sizes[:, 0] % 2 if running == ["m"] else np.where(sizes[:, 0] == 1, 0, subline)
    line = codes(frame, key) * (subline.max(initial=0) + 1) + subline
    # 1. Rows in the order of lines and sizes. Inner rows have a neighbour on each side.
    order = np.lexsort((sizes[:, -1], line))
    line = line[order]
    size = np.log(sizes[order, -1])
    time = np.log(frame["time_us"].to_numpy()[order])
    inner = np.flatnonzero((line[1:-1] == line[:-2]) & (line[1:-1] == line[2:])) + 1
    before, after = time[inner] - time[inner - 1], time[inner] - time[inner + 1]
    # 2. Spikes: both differences exceed the limit, with the same sign.
    limit = np.log1p(_RULES.spike)
    spike = np.zeros(len(frame), dtype=bool)
    distance = np.full(len(frame), np.nan)
    spike[order[inner]] = (np.minimum(before, after) > limit) | (np.maximum(before, after) < -limit)
    # 3. The distance from the line through the neighbours.
    span = size[inner + 1] - size[inner - 1]
    near = (span > 0) & (span <= np.log(_RULES.near))
    share = ((size[inner] - size[inner - 1])[near]) / span[near]
    distance[order[inner[near]]] = (1 - share) * before[near] + share * after[near]
    return spike, distance


def noise_of(distance: np.ndarray) -> float:
    """Return the relative difference below which two times are equal, from the log distances of `along_lines`.

    It is the standard deviation of the difference of two repeats. For normal errors of deviation σ, repeats differ by
    1.41 σ, and the median distance to the line through two neighbours is 0.83 σ. So the factor on the median is 1.7.
    """
    distances = np.abs(distance[np.isfinite(distance)])
    return round(_RULES.noise_factor * float(np.median(distances)), 4) if len(distances) else 0.0


def noise_records(frame: pd.DataFrame, distance: np.ndarray) -> list[dict[Hashable, Any]]:
    """Return `noise_of` each (GPU, library, element type, decade of time) with at least ``noise_rows`` distances."""
    is_finite = np.isfinite(distance)
    decade = np.searchsorted(_RULES.decades_us, frame["time_us"].to_numpy()[is_finite], side="right") - 1
    bucket = ["gpu", "library", "dtype"]
    over_us = np.asarray(_RULES.decades_us)[decade]
    measured = frame.loc[is_finite, bucket].assign(over_us=over_us, distance=distance[is_finite])
    grouped = measured.groupby([*bucket, "over_us"], observed=True)["distance"]
    table = grouped.agg(noise=lambda part: noise_of(part.to_numpy()), rows="size").reset_index()
    return table[table["rows"] >= _RULES.noise_rows].to_dict("records")
