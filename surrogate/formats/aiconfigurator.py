"""Kernel times of vLLM, SGLang and TensorRT-LLM on data-centre GPUs, which ai-dynamo/aiconfigurator publishes.

How to get them, on Python 3.11 to 3.13: pip install 'seer-surrogate[measurements]', or, where NumPy shall stay below
2.1, without what the package asks for besides, which its tables do not need:

    pip install --no-deps aiconfigurator-core==0.12.0

On another Python or system, fetch the wheel and give it as PATH:

    pip download --no-deps --only-binary :all: --python-version 3.13 --platform manylinux_2_28_x86_64 \\
        aiconfigurator-core==0.12.0

Then `seer import aiconfigurator --family gemm -o gemm.parquet` finds them; the package is never imported. A wheel file,
an unpacked folder of its tables or a checkout of the repository can be given as PATH instead. Families: gemm,
attention, mla, moe, transfer (collective operations), quantise; one a file.

- Of each (GPU, problem, library) the newest version counts, as where choices are judged; problems that only an older
  one measured stay. Repeats become their median, in µs.
- Rows at the floor of a harness are left out: times that do not depend on the problem, far above what others need
  (`without_floors` has the rule); slower rows of such a candidate stay. The metadata counts the former by candidate,
  under ``floors``.
- Column ``spike``: a time over 8 % slower, or faster, than both its neighbours along the running size.
- ``noise`` in the metadata, and by GPU, library, type and decade of time ``noise_by``: the relative difference below
  which two times are equal, told by how far times lie off the line through their neighbours.
- Tables of whole modules, of communication between nodes and of kernels that no family describes are not imported;
  the metadata counts their rows by name.
"""

import io
import struct
import tomllib
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from surrogate.dataset.files import Progress
from surrogate.features.algorithms import version_key
from surrogate.features.elementwise import MAX_EXACT, MAX_INT32, checked_int
from surrogate.features.errors import InputError, nearest
from surrogate.features.families import Family
from surrogate.features.families import family as family_named
from surrogate.features.families.moe import NONGATED
from surrogate.features.gpu import gpu
from surrogate.formats import Format, Option
from surrogate.formats.foreign_file import Allowance, unpacked
from surrogate.formats.imported import Imported, plural

PACKAGE = "aiconfigurator_core"
FOLDERS = ("systems/data", f"{PACKAGE}/systems/data", f"aic-core/src/{PACKAGE}/systems/data")
"""Where the tables lie in the package, in a folder of packages, in a checkout."""
ENDING = "_perf.parquet"
COMMITS = {"0.12.0": "095f58a"}
"""Version of the package → commit of ai-dynamo/aiconfigurator."""
MAX_BYTES = 2 << 30
"""Of a wheel's tables, unpacked, and of the values of each of them."""
REMEDY = "`seer import aiconfigurator --how` says how to get one"
_CONTENT = tomllib.loads(Path(__file__).with_name("aiconfigurator.toml").read_text(encoding="utf-8"))
GPUS: dict[str, str] = _CONTENT["gpus"]
"""Folder → name in the registry, where that does not know the folder's."""
COLUMNS: dict[str, str] = _CONTENT["columns"]
"""Column of a table → of a dataset; others keep their name."""
NAMES: dict[str, str] = _CONTENT["names"]
"""Element type or operator of a table → of a dataset; others keep their name."""
TABLES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    name: (shared.pop("family"), shared) for name, shared in _CONTENT["tables"].items()
}
"""Name of a table (without its ending) → its family, and what all its rows share."""
NONGATED_LAYERS = ((2688, 1856), (1024, 2688), (4096, 2688), (2048, 5120), (8192, 5120))
"""Hidden and inner size of the layers of mixtures whose experts have no gate (Nemotron's)."""
ALWAYS_GATED = ("0.14.0", "0.19.0", "0.20.0", "0.22.0", "0.5.6.post2", "0.5.10")
"""Versions of vLLM and SGLang that timed these layers with a gate, as the times show."""


_ZIP_ERRORS = (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, MemoryError, struct.error)
"""What damage to an archive, or to a table in it, may raise."""


class SourceTable(NamedTuple):
    """One table: its path, which tells what it is of, its size in bytes, and what gives its content."""

    path: str
    size: int
    load: Callable[[], bytes]

    @property
    def gpu(self) -> str:
        """The GPU's folder."""
        return PurePath(self.path).parts[-5]

    @property
    def library(self) -> tuple[str, str]:
        """The framework and its version."""
        return PurePath(self.path).parts[-3], PurePath(self.path).parts[-2]

    @property
    def table(self) -> str:
        """The table's name."""
        return PurePath(self.path).name.removesuffix(ENDING)


def read(
    paths: Sequence[str | Path], *, family: str, gpus: Sequence[str] | None = None, progress: Progress | None = None
) -> Imported:
    """The rows of one family, on all GPUs or on ``gpus``. Raises `InputError` naming what is missing or damaged."""
    if len(paths) > 1:
        raise InputError(f"{len(paths)} paths given; name one wheel or folder, or none")
    path = Path(paths[0]) if paths else _installed()
    sources, version = _sources(path)
    chosen = family_named(family)
    names = {folder: _gpu_name(folder) for folder in sorted({source.gpu for source in sources})}
    if gpus:
        wanted = _wanted(gpus, names)
        names = {folder: name for folder, name in names.items() if name in wanted}
    # 1. Tables of the family become rows; those of unknown GPUs or of no family are counted.
    left_out = Counter[str]()
    foreign = Counter[str]()
    parts = []
    read_here = {"", chosen.name}
    sources = [s for s in sources if s.gpu in names and TABLES.get(s.table, ("", {}))[0] in read_here]
    done = 0
    total = sum(source.size for source in sources)
    for source in sources:
        name = names[source.gpu]
        if source.table not in TABLES:
            foreign[source.table] += len(_table(source, rows_only=True))
        elif name is None:
            left_out[f"GPU {source.gpu} unknown"] += len(_table(source, rows_only=True))
        else:
            parts.append(_rows(_table(source), source, name, chosen))
        done += source.size
        if progress:
            progress(done, total, source.table)
    if not parts:
        readable = ", ".join(dict.fromkeys(name for name, _ in TABLES.values()))
        raise InputError(f"{path}: holds no table of family {chosen.name} on a known GPU; families: {readable}")
    # 2. One frame, cleaned.
    columns = {name: _joined([part[name] for part in parts]) for name in parts[0].columns}
    frame, quality = _cleaned(pd.DataFrame(columns), chosen, left_out)
    origin = " at ".join(["ai-dynamo/aiconfigurator", *([COMMITS[version]] if version in COMMITS else [])])
    notices = [f"Measurements of {origin}, aiconfigurator-core {version} (Apache-2.0)."]
    notes = (
        f"rows of {_listed(frame['gpu'].value_counts())}",
        f"left out: {_listed(left_out) or 'nothing'}",
        f"tables not imported: {_listed(foreign) or 'none'}",
        f"{plural(quality['spikes'], 'spike')}; noise {quality['noise']:.1%}",
    )
    counts = {"left_out": dict(+left_out), "not_imported": dict(foreign)}
    metadata = {**quality, "licence_notices": notices, **counts}
    return Imported(frame, candidates="listed", notes=notes, metadata=metadata)


_SUMMARY = "kernels of vLLM, SGLang and TensorRT-LLM: its wheel's tables"
_FAMILY = Option("For aiconfigurator: the family of kernels to import.", "F")
FORMAT = Format("aiconfigurator", _SUMMARY, read, own={"family": _FAMILY}, finds_files=True)


def _cleaned(frame: pd.DataFrame, family: Family, left_out: Counter[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows of a dataset, and what the metadata says of them; ``left_out`` counts the others by reason."""
    times = frame["time_us"].to_numpy()
    usable = np.isfinite(times) & (times > 0)
    left_out["time is 0, below, or no number"] += int((~usable).sum())
    for name in [name for name, known in family.settings.items() if known]:
        for value in set(frame[name].cat.categories) - set(family.settings[name]):
            strange = (frame[name] == value).to_numpy() & usable
            left_out[f"{name} {value} unknown"] += int(strange.sum())
            usable &= ~strange
    for size in family.sizes:
        within = frame[size.name].between(size.minimum, MAX_INT32).to_numpy()
        left_out[f"{size.name} out of range"] += int((usable & ~within).sum())
        usable &= within
    frame, older = newest(frame[usable], family)
    left_out["a newer version measured the problem"] += older
    frame, floors = without_floors(frame, family)
    left_out["at the floor of a harness"] += sum(record["rows"] for record in floors)
    if frame.empty:
        raise InputError(f"no row of family {family.name} is left: {_listed(left_out)}")
    spike, distance = along_lines(frame, family)
    quality = {
        "noise": noise_of(distance),
        "noise_by": noise_records(frame, distance),
        "floors": floors,
        "spikes": int(spike.sum()),
    }
    return frame.assign(spike=spike).reset_index(drop=True), quality


def _listed(counts: Mapping[str, int] | pd.Series) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def _installed() -> Path:
    """The folder of the installed package, which is not imported: that would load its estimators."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"no PATH given, and aiconfigurator-core is not installed; {REMEDY}")
    return Path(spec.submodule_search_locations[0])


def _sources(path: Path) -> tuple[list[SourceTable], str]:
    """The tables in a wheel or below a folder, and the package's version as far as a name tells it."""
    try:
        if path.is_file():
            wheel = zipfile.ZipFile(path)
            files = wheel.infolist()
            allowance = Allowance(path, path.stat().st_size, MAX_BYTES)
            sources = [
                SourceTable(f.filename, f.file_size, partial(unpacked, wheel, f.filename, allowance)) for f in files
            ]
            infos = [path.name]
        else:
            root = next((path / name for name in FOLDERS if (path / name).is_dir()), path).resolve()
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
    except InputError:
        return None


def _wanted(gpus: Sequence[str], names: Mapping[str, str | None]) -> set[str | None]:
    """Registry names of ``gpus``, all of which must be among ``names``."""
    here = sorted(name for name in names.values() if name)
    for name in gpus:
        if _gpu_name(name) not in here:
            raise InputError(f"--gpu {name}: no table; those with one: {', '.join(here)}{nearest(name, here)}")
    return {_gpu_name(name) for name in gpus}


def _table(source: SourceTable, rows_only: bool = False) -> pd.DataFrame:
    """The table with its texts as categories; ``rows_only``: without columns, for its length."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = io.BytesIO(source.load())
        file = pq.ParquetFile(content)
        if 8 * file.metadata.num_rows * file.metadata.num_columns > MAX_BYTES:
            raise ValueError(f"it declares {file.metadata.num_rows:,} rows")
        schema = file.schema_arrow
        kinds = (pa.string(), pa.large_string())
        texts = [column.name for column in schema if column.type in kinds]
        table = pq.read_table(content, columns=[] if rows_only else None, read_dictionary=texts)
        return table.to_pandas(ignore_metadata=True)
    except (pa.ArrowException, zlib.error, *_ZIP_ERRORS) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise InputError(f"{source.path}: cannot be read as parquet ({reason}); fetch it again") from None


def _rows(table: pd.DataFrame, source: SourceTable, name: str, family: Family) -> pd.DataFrame:
    """Dataset columns of one table: texts as categories, sizes as the narrowest integers that hold them."""
    library, version = source.library
    try:
        values = {
            **family.setting_defaults,
            "math": "default",
            "library": library,
            **{COLUMNS.get(str(name), str(name)): table[name] for name in table},
            **TABLES[source.table][1],
            "gpu": name,
            "library_version": version,
            "family": family.name,
            "status": "ok",
        }
        values |= _special(table, source.table, version)
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
    except KeyError as error:
        raise InputError(f"{source.path}: column {error} is missing; the tables of 0.12 are known") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{source.path}: {error}; the tables of 0.12 are known") from None


def _special(table: pd.DataFrame, name: str, version: str) -> dict[str, object]:
    """Columns of a table that are more than a name."""
    if name == "mla_bmm":  # projections that decoding absorbs, a product per head: to 512 latent columns, or back
        before = (table["op_name"] == "mla_gen_pre").to_numpy()
        n, k = np.where(before, 512, 128), np.where(before, 128, 512)
        return {"batch": table["num_heads"], "m": table["num_tokens"], "n": n, "k": k}
    if name == "moe" and version not in ALWAYS_GATED:
        plain = pd.MultiIndex.from_frame(table[["hidden_size", "inter_size"]]).isin(NONGATED_LAYERS)
        return {"variant": pd.Series(pd.Categorical.from_codes(plain.astype(np.int8), pd.Index(["", NONGATED])))}
    if name in ("nccl", "oneccl"):
        return {"operator": table["op_name"]}
    if name == "custom_allreduce":  # a copy of another framework's table may lie in a folder
        return {"library": table["framework"].str.lower()}
    return {"n": table["m"], "c": table["k"]} if name == "scale_matrix" else {}


def _texts(values: Any, rows: int) -> Any:
    """One text for all rows, or one for each; none may be missing."""
    if isinstance(values, str):
        return pd.Categorical.from_codes(np.zeros(rows, dtype=np.int8), pd.Index([values]))
    code, distinct = pd.factorize(values)
    if (code < 0).any():
        raise ValueError(f"{values.name} is empty in a row")
    return pd.Categorical(np.array([NAMES.get(text, str(text)) for text in distinct], dtype=object)[code])


def _sizes(name: str, values: object, rows: int) -> np.ndarray:
    """One whole number for all rows, or one for each, in the narrowest type that holds them."""
    sizes = checked_int("its table", name, np.broadcast_to(np.asarray(values), rows), minimum=-MAX_EXACT)
    return sizes.astype(np.int32) if np.abs(sizes).max(initial=0) <= MAX_INT32 else sizes


def _joined(parts: Sequence[pd.Series]) -> Any:
    """One column of all parts, categories united."""
    if isinstance(parts[0].dtype, pd.CategoricalDtype):
        return pd.api.types.union_categoricals([pd.Categorical(part) for part in parts])
    return np.concatenate([part.to_numpy() for part in parts])


# Cleaning: newest versions, repeats, harness floors, spikes and noise. Functions take a frame of one family with a
# dataset's columns; its texts are best pandas categories, which group fast. A *line* is one candidate on problems that
# differ in the running size only: m of a matrix product, the length of a context, tokens, elements.
FLOOR_QUANTILE, FLAT_QUANTILE = 0.02, 0.25
FLOOR_RATIO, FLAT_RATIO, AT_FLOOR = 4.0, 1.6, 2.0
FLOOR_ROWS = 20
"""Rows of a candidate below which its quantiles say nothing."""
SPIKE = 0.08
"""Beyond this relative distance from both neighbours, on one side, a time is a spike or a dip."""
RUNNING_SIZES = ("m", "query_length", "context_length", "tokens", "elements")
"""Sizes that change along a line; in a family without any of them it is the first size."""
NEAR = 4.0
"""Neighbours tell the noise where the larger running size is at most this multiple of the smaller."""
NOISE_FACTOR = 1.7
NOISE_ROWS = 100
"""Rows of a bucket below which its noise is not told."""
DECADES_US = (0.0, 10.0, 100.0, 1000.0)
"""Lower ends of the buckets of the noise, which tell a problem's size by its time."""


def newest(frame: pd.DataFrame, family: Family) -> tuple[pd.DataFrame, int]:
    """A row per problem and candidate: of each library the newest version that measured the problem, median of repeats.

    This is the rule by which choices are judged. A version that measured a part of the problems replaces older rows of
    just these. The second value counts the rows that are superseded.
    """
    # 1. The rank of each row's version, and the newest rank that each problem of a library has: (problems,).
    problem = [*(name for name in family.problem_key if name in frame), "library"]
    code = _codes(frame, problem)
    versions = frame["library_version"].astype("category")
    ordered = sorted(versions.cat.categories, key=version_key)
    rank = versions.cat.set_categories(ordered).cat.codes.to_numpy()
    newest_rank = np.full(code.max(initial=0) + 1, -1, dtype=rank.dtype)
    np.maximum.at(newest_rank, code, rank)
    is_newest = rank == newest_rank[code]
    frame = frame[is_newest]
    # 2. Only rows that are there several times need a median, which is slow.
    row = pd.Series(_codes(frame, [*problem, "algorithm"]))
    again = row.duplicated(keep=False).to_numpy()
    times = frame["time_us"].to_numpy(copy=True)
    times[again] = pd.Series(times[again]).groupby(row[again].to_numpy()).transform("median")
    return frame.assign(time_us=times)[~row.duplicated().to_numpy()], int((~is_newest).sum())


def without_floors(frame: pd.DataFrame, family: Family) -> tuple[pd.DataFrame, list[dict[Hashable, Any]]]:
    """The rows that are no harness floor, and a record per candidate of those that were.

    A harness that launches kernels one by one, or adds a step of its own, times every small problem alike. A candidate
    (GPU, library, algorithm, operator and element types, phase) has a floor where the 2 % quantile of its times lies
    over 4 times the smallest such quantile of the same GPU, operator and phase, and its 25 % quantile below 1.6 times
    its own 2 % quantile: slow kernels grow with the problem, a floor does not. Rows up to twice the floor, the record's
    ``limit_us``, are left out; beyond it the candidate's times approach those of others and stay.
    """
    # 1. Low and middle quantile of each candidate: a table with a row per candidate.
    names = [name for name in family.setting_names if name in ("operator", "dtype", "phase", "kv_dtype")]
    candidate = ["gpu", "library", "algorithm", *names]
    grouped = frame.groupby(candidate, sort=False, observed=True)
    low = grouped["time_us"].quantile(FLOOR_QUANTILE)
    flat = grouped["time_us"].quantile(FLAT_QUANTILE) < FLAT_RATIO * low
    enough = grouped.size() >= FLOOR_ROWS
    # 2. Flat candidates far above the fastest one of their GPU, operator and phase.
    kernel_group = [name for name in candidate if name in ("gpu", "operator", "phase")]
    minimum = low[enough].groupby(kernel_group, observed=True).transform("min").reindex(low.index)
    floors = low[enough & flat & (low > FLOOR_RATIO * minimum)]
    # 3. Their rows up to twice the floor; the limit of all others is 0.
    code = grouped.ngroup().to_numpy()
    limit = AT_FLOOR * low.where(low.index.isin(floors.index), 0.0).to_numpy()
    floored = frame["time_us"].to_numpy() <= limit[code]
    counts = np.bincount(code[floored], minlength=len(low))
    records = low.round(2).rename("floor_us").reset_index().assign(limit_us=(AT_FLOOR * low).to_numpy(), rows=counts)
    return frame[~floored], records[counts > 0].to_dict("records")


def along_lines(frame: pd.DataFrame, family: Family) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) True at spikes and dips, and (rows,) the log distance from the line through both neighbours.

    A spike is over 8 % slower than both its neighbours along the running size, a dip as much faster. The distance is
    that from the straight line in log time over log size; NaN at the ends and between sizes further apart than `NEAR`.
    Odd m have lines of their own: rows that are not aligned are slower, and no spike.
    """
    running = [name for name in family.size_names if name in RUNNING_SIZES] or [family.size_names[0]]
    key = [name for name in family.row_key if name not in (*running, "library_version") and name in frame]
    sizes = frame[running].to_numpy(dtype=np.int64)
    apart = sizes[:, -1] - sizes[:, 0]  # what the cache holds already, in phases that fill it
    apart = sizes[:, 0] % 2 if running == ["m"] else np.where(sizes[:, 0] == 1, 0, apart)
    line = _codes(frame, key) * (apart.max(initial=0) + 1) + apart
    # 1. Rows in the order of lines and sizes, and those with a neighbour on each side.
    order = np.lexsort((sizes[:, -1], line))
    line = line[order]
    size = np.log(sizes[order, -1])
    time = np.log(frame["time_us"].to_numpy()[order])
    inner = np.flatnonzero((line[1:-1] == line[:-2]) & (line[1:-1] == line[2:])) + 1
    before, after = time[inner] - time[inner - 1], time[inner] - time[inner + 1]
    # 2. Both differences beyond the limit, with one sign.
    limit = np.log1p(SPIKE)
    spike = np.zeros(len(frame), dtype=bool)
    distance = np.full(len(frame), np.nan)
    spike[order[inner]] = (np.minimum(before, after) > limit) | (np.maximum(before, after) < -limit)
    # 3. The distance from the line through the neighbours.
    span = size[inner + 1] - size[inner - 1]
    near = (span > 0) & (span <= np.log(NEAR))
    share = ((size[inner] - size[inner - 1])[near]) / span[near]
    distance[order[inner[near]]] = (1 - share) * before[near] + share * after[near]
    return spike, distance


def noise_of(distance: np.ndarray) -> float:
    """The relative difference below which two times are equal, from the log distances of `along_lines`.

    It is 1.7 times their median, the standard deviation of the difference of two repeats: a normal error of deviation σ
    lies a median 0.83 σ off the line through two neighbours of the same error, and repeats differ by 1.41 σ.
    """
    distances = np.abs(distance[np.isfinite(distance)])
    return round(NOISE_FACTOR * float(np.median(distances)), 4) if len(distances) else 0.0


def noise_records(frame: pd.DataFrame, distance: np.ndarray) -> list[dict[Hashable, Any]]:
    """`noise_of` each (GPU, library, element type, decade of time) that has 100 distances."""
    is_told = np.isfinite(distance)
    decade = np.searchsorted(DECADES_US, frame["time_us"].to_numpy()[is_told], side="right") - 1
    bucket = ["gpu", "library", "dtype"]
    measured = frame.loc[is_told, bucket].assign(over_us=np.asarray(DECADES_US)[decade], distance=distance[is_told])
    grouped = measured.groupby([*bucket, "over_us"], observed=True)["distance"]
    table = grouped.agg(noise=lambda part: noise_of(part.to_numpy()), rows="size").reset_index()
    return table[table["rows"] >= NOISE_ROWS].to_dict("records")


def _codes(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """(rows,) a number from 0, equal where all ``columns`` are."""
    return frame.groupby(list(columns), sort=False, observed=True).ngroup().to_numpy()
