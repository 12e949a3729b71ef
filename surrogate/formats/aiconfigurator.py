"""Kernel times of vLLM, SGLang and TensorRT-LLM on data-centre GPUs, which ai-dynamo/aiconfigurator publishes.

How to get them: pip install 'seer-surrogate[measurements]', or without the packages that it asks for besides

    pip install --no-deps aiconfigurator-core==0.12.0

Then `seer import aiconfigurator --family gemm -o gemm.parquet` finds them; the package is never imported. A wheel file,
an unpacked folder of its tables or a checkout of the repository can be given as PATH instead. Families: gemm,
attention, mla, moe, transfer (collective operations), rowwise (quantisation); one a file.

- Of each (GPU, problem, library, algorithm) the newest version counts; problems that only an older one measured stay.
  Repeats become their median, in µs.
- Rows at the floor of a harness are left out: times that do not depend on the problem, far above what others need
  (`surrogate.formats.cleaning.without_floors` has the rule). The metadata counts them under ``floors``.
- Column ``spike``: a time over 8 % slower, or faster, than both its neighbours along the running size.
- ``noise`` in the metadata, and by GPU, library, type and decade of time ``noise_by``: the relative difference below
  which two times are equal, told by how far times lie off the line through their neighbours.
- Tables of whole modules, of communication between nodes and of kernels that no family describes are not imported;
  the metadata counts their rows by name.
"""

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from surrogate.features.errors import InputError, nearest
from surrogate.features.families import Family
from surrogate.features.families import family as family_named
from surrogate.features.gpu import gpu
from surrogate.features.operators.moe import NONGATED
from surrogate.formats.cleaning import along_lines, newest, noise_of, noise_records, without_floors
from surrogate.formats.foreign_file import Progress
from surrogate.formats.imported import Imported, plural

PACKAGE = "aiconfigurator_core"
REMEDY = "`seer import aiconfigurator --how` says how to get it"
FOLDERS = (
    "systems/data", f"{PACKAGE}/systems/data", f"aic-core/src/{PACKAGE}/systems/data",
)  # fmt: skip
"""Where the tables lie in the package, in a folder of packages, in a checkout."""
COMMITS = {"0.12.0": "095f58a"}
"""Version of the package → commit of ai-dynamo/aiconfigurator."""
GPUS = {"a100_sxm": "a100-sxm4-80gb", "b200_sxm": "b200", "b300_sxm": "b300"}
"""Folder → name in the registry, where that does not know the folder's."""
NAMES = {
    "bfloat16": "bf16", "half": "fp16", "float16": "fp16", "fp8_e4m3": "fp8", "sq": "int8_sq", "alltoall": "all_to_all",
}  # fmt: skip
"""Element type or operator of a table → of a dataset; others keep their name."""
NONGATED_LAYERS = ((2688, 1856), (1024, 2688), (4096, 2688), (2048, 5120), (8192, 5120))
"""Hidden and inner size of the layers whose experts have no gate."""
ALWAYS_GATED = ("0.14.0", "0.19.0", "0.20.0", "0.22.0", "0.5.6.post2", "0.5.10")
"""Versions that timed these layers with a gate."""

Columns = Mapping[str, Any]
"""Name of a column → its values, or one for all rows."""
Reader = Callable[[pd.DataFrame, str], Columns]
"""(table, the library's version) → the columns of its problems."""


def _gemm(t: pd.DataFrame, _: str) -> Columns:
    return {"operator": "gemm", "dtype": t["gemm_dtype"], "batch": 1, "m": t["m"], "n": t["n"], "k": t["k"]}


def _mla_bmm(t: pd.DataFrame, _: str) -> Columns:
    """The projections that MLA's decoding absorbs, a product per head: queries to 512 latent columns, and back."""
    before = (t["op_name"] == "mla_gen_pre").to_numpy()
    sizes = {"batch": t["num_heads"], "m": t["num_tokens"], "n": np.where(before, 512, 128)}
    return {"operator": "bmm", "dtype": t["bmm_dtype"], **sizes, "k": np.where(before, 128, 512)}


def _attention(t: pd.DataFrame, _: str) -> Columns:
    return {
        "operator": "attention", "phase": t["op_name"].str.removesuffix("_attention"),
        "dtype": t["attn_dtype"], "kv_dtype": t.get("kv_cache_dtype", t["attn_dtype"]),
        "batch": t["batch_size"], "heads": t["num_heads"], "kv_heads": t.get("num_key_value_heads", t["num_heads"]),
        "head_dim": t["head_dim"], "query_length": t["isl"], "context_length": t["isl"] + t.get("step", 0),
        "window": t.get("window_size", 0),
    }  # fmt: skip


def _mla(t: pd.DataFrame, _: str) -> Columns:
    """``num_heads`` are those of one GPU: times follow them, whatever ``tp_size`` says."""
    return {
        "operator": "mla", "phase": t["op_name"].str.removeprefix("mla_"), "dtype": t["mla_dtype"],
        "kv_dtype": t["kv_cache_dtype"], "batch": t["batch_size"], "heads": t["num_heads"], "query_length": t["isl"],
        "context_length": t["isl"] + t["step"],
    }  # fmt: skip


def _moe(t: pd.DataFrame, version: str) -> Columns:
    """Layers of Nemotron have two matrices an expert; older vLLM and SGLang took three for them, as the times show."""
    plain = np.zeros(len(t), dtype=bool)
    if version not in ALWAYS_GATED:
        plain = pd.MultiIndex.from_frame(t[["hidden_size", "inter_size"]]).isin(NONGATED_LAYERS)
    return {
        "variant": pd.Categorical.from_codes(plain.astype(np.int8), ["", NONGATED]),
        "operator": "moe", "dtype": t["moe_dtype"], "routing": t["distribution"], "tokens": t["num_tokens"],
        "hidden": t["hidden_size"], "inter": t["inter_size"], "topk": t["topk"], "experts": t["num_experts"],
        "tensor_parallel": t["moe_tp_size"], "expert_parallel": t["moe_ep_size"],
    }  # fmt: skip


def _collective(t: pd.DataFrame, _: str) -> Columns:
    """``message_size`` counts elements: a half message takes as long as one of twice as many int8."""
    sizes = {"elements": t["message_size"], "ranks": t["num_gpus"]}
    if "nccl_dtype" in t:
        library = t["kernel_source"].str.lower()  # a framework's folder may hold them, too
        return {"operator": t["op_name"], "library": library, "dtype": t["nccl_dtype"], **sizes}
    return {
        "operator": "all_reduce",
        "library": t["framework"].str.lower(),
        "dtype": t["allreduce_dtype"],
        **sizes,
    }


def _quantise(t: pd.DataFrame, _: str) -> Columns:
    return {"operator": "quantise", "dtype": "bf16", "n": t["m"], "c": t["k"], "h": 1, "w": 1}


TABLES: Mapping[str, tuple[str, Reader]] = {
    "gemm": ("gemm", _gemm),
    "mla_bmm": ("gemm", _mla_bmm),
    "context_attention": ("attention", _attention),
    "generation_attention": ("attention", _attention),
    "encoder_attention": ("attention", _attention),
    "context_mla": ("mla", _mla),
    "generation_mla": ("mla", _mla),
    "moe": ("moe", _moe),
    "nccl": ("transfer", _collective),
    "oneccl": ("transfer", _collective),
    "custom_allreduce": ("transfer", _collective),
    "scale_matrix": ("rowwise", _quantise),
}
"""Name of a table (without ``_perf.parquet``) → its family, and the reader of its columns."""


@dataclass(frozen=True, slots=True)
class Source:
    """One table where it lies: ``name`` for messages, ``table`` its file's name, ``load`` gives its bytes."""

    name: str
    gpu: str
    library: str
    version: str
    table: str
    size: int
    load: Callable[[], bytes]


def read(
    paths: Sequence[str | Path],
    *,
    family: str,
    gpus: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Imported:
    """The rows of one family, on all GPUs or on ``gpus``. Raises `InputError` naming what is missing or damaged."""
    kind = family_named(family)
    readable = list(dict.fromkeys(name for name, _ in TABLES.values()))
    if kind.name not in readable:
        raise InputError(f"no table holds family {kind.name}; give one of {', '.join(readable)}")
    if len(paths) > 1:
        raise InputError(
            f"{len(paths)} paths given; name one wheel or folder, or none for the installed package"
        )
    path = Path(paths[0]) if paths else _installed()
    sources, version = _in_wheel(path) if path.is_file() else _in_folder(path)
    if not sources:
        raise InputError(f"{path}: holds no GPU/FAMILY/FRAMEWORK/VERSION/NAME_perf.parquet; {REMEDY}")
    names = {folder: _gpu_name(folder) for folder in sorted({source.gpu for source in sources})}
    if gpus:
        names = {folder: name for folder, name in names.items() if name in _wanted(gpus, names)}
    left_out, foreign, parts = Counter[str](), Counter[str](), []
    total, done = sum(source.size for source in sources), 0
    for source in sources:
        done += source.size
        name, (holds, columns) = names.get(source.gpu), TABLES.get(source.table, ("", None))
        if source.gpu not in names or holds not in ("", kind.name):
            continue
        table = _table(source, rows_only=columns is None or name is None)
        if columns is None:
            foreign[source.table] += len(table)
        elif name is None:
            left_out[f"GPU {source.gpu} unknown"] += len(table)
        else:
            parts.append(_rows(table, source, name, columns))
        if progress:
            progress(done, total)
    if not parts:
        raise InputError(f"{path}: holds no table of family {kind.name} on a known GPU; {REMEDY}")
    return _cleaned(_joined(parts), kind, left_out, foreign, version)


def _cleaned(
    frame: pd.DataFrame, kind: Family, left_out: Counter[str], foreign: Counter[str], version: str
) -> Imported:
    """The dataset of all rows, with what was left out and found as metadata and notes."""
    raw = frame["time_us"].to_numpy()
    usable = np.isfinite(raw) & (raw > 0)
    left_out["time is 0, below, or no number"] += int((~usable).sum())
    for name, known in kind.settings.items():
        if known and name in frame:
            for value in set(frame[name].cat.categories) - set(known):
                strange = (frame[name] == value).to_numpy() & usable
                left_out[f"{name} {value} unknown"] += int(strange.sum())
                usable &= ~strange
    frame, older = newest(frame[usable], kind)
    left_out["a newer version measured the problem"] += older
    frame, floors = without_floors(frame, kind)
    left_out["at the floor of a harness"] += sum(record["rows"] for record in floors)
    if frame.empty:
        raise InputError(f"no row of family {kind.name} is left: {_listed(left_out)}")
    spike, distance = along_lines(frame, kind)
    constant = {**kind.setting_defaults, "math": "default", "status": "ok", "family": kind.name}
    for name, value in constant.items():
        if name not in frame:
            frame[name] = _column(value, len(frame))
    frame = frame.assign(spike=spike).reset_index(drop=True)
    origin = (
        f"ai-dynamo/aiconfigurator at {COMMITS[version]}"
        if version in COMMITS
        else "ai-dynamo/aiconfigurator"
    )
    metadata = {
        "licence_notices": [f"Measurements of {origin}, aiconfigurator-core {version} (Apache-2.0)."],
        "noise": noise_of(distance), "noise_by": noise_records(frame, distance),
        "floors": floors, "spikes": int(spike.sum()), "left_out": dict(+left_out), "not_imported": dict(foreign),
    }  # fmt: skip
    notes = (
        f"rows of {_listed(frame['gpu'].value_counts())}",
        f"left out: {_listed(+left_out) or 'nothing'}",
        f"tables not imported: {_listed(foreign) or 'none'}",
        f"{plural(int(spike.sum()), 'spike')}; noise {metadata['noise']:.1%}",
    )
    return Imported(frame, candidates="listed", notes=notes, metadata=metadata)


def _listed(counts: Mapping[str, int] | pd.Series) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def _installed() -> Path:
    """The folder of the installed package, which is not imported: that would load its estimators."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"aiconfigurator-core is not installed and no PATH given; {REMEDY}")
    return Path(spec.submodule_search_locations[0])


def _in_folder(path: Path) -> tuple[list[Source], str]:
    """The tables below a folder, and the version of the package as far as the folder beside tells it."""
    if not path.is_dir():
        raise InputError(f"{path}: no such file or folder; {REMEDY}")
    root = next((path / name for name in FOLDERS if (path / name).is_dir()), path).resolve()
    files = sorted(root.rglob("*_perf.parquet"))
    sources = [_source(str(file), file.parts, file.stat().st_size, file.read_bytes) for file in files]
    infos = [info.name for folder in root.parents[:3] for info in folder.glob(f"{PACKAGE}-*.dist-info")]
    return sources, _version(infos)


def _in_wheel(path: Path) -> tuple[list[Source], str]:
    """The tables inside a wheel, read in place."""
    try:
        wheel = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path}: is no wheel ({error}); {REMEDY}") from None
    members = [each for each in wheel.infolist() if each.filename.endswith("_perf.parquet")]
    sources = [
        _source(f"{path}: {each.filename}", PurePosixPath(each.filename).parts, each.file_size,
                lambda each=each: wheel.read(each))
        for each in members
        if len(PurePosixPath(each.filename).parts) >= 5
    ]  # fmt: skip
    return sources, _version(wheel.namelist())


def _version(names: Sequence[str]) -> str:
    infos = [name.split("-")[1] for name in names if name.startswith(PACKAGE) and ".dist-info" in name]
    return infos[0].split(".dist-info")[0] if infos else "of unknown version"


def _source(name: str, parts: Sequence[str], size: int, load: Callable[[], bytes]) -> Source:
    gpu_folder, _, library, version, file = parts[-5:]
    return Source(name, gpu_folder, library, version, file.removesuffix("_perf.parquet"), size, load)


def _gpu_name(folder: str) -> str | None:
    try:
        return gpu(GPUS.get(folder, folder)).name
    except InputError:
        return None


def _wanted(gpus: Sequence[str], names: Mapping[str, str | None]) -> set[str]:
    """Registry names of ``gpus``, all of which must be among ``names``."""
    wanted = {name: _gpu_name(name) for name in gpus}
    here = sorted(name for name in names.values() if name)
    for given, name in wanted.items():
        if name not in here:
            raise InputError(
                f"--gpu {given}: has no table; those with one: {', '.join(here)}{nearest(given, here)}"
            )
    return {name for name in wanted.values() if name}


def _table(source: Source, rows_only: bool) -> pd.DataFrame:
    """The table with its texts as categories; ``rows_only``: without columns, for its length."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = io.BytesIO(source.load())
        schema = pq.read_schema(content)
        texts = [
            each.name
            for each in schema
            if pa.types.is_string(each.type) or pa.types.is_large_string(each.type)
        ]
        columns = [] if rows_only else [name for name in schema.names if name not in ("device", "version")]
        return pq.read_table(content, columns=columns, read_dictionary=texts).to_pandas(ignore_metadata=True)
    except (pa.ArrowException, zipfile.BadZipFile, OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise InputError(f"{source.name}: cannot be read as parquet ({reason}); fetch it again") from None


def _rows(table: pd.DataFrame, source: Source, name: str, columns: Reader) -> pd.DataFrame:
    """Dataset columns of one table: texts as categories, sizes as the narrowest integers that hold them."""
    settings = {"gpu": name, "library": source.library, "library_version": source.version}
    try:
        values = {**settings, "algorithm": table["kernel_source"], **columns(table, source.version)}
        frame = pd.DataFrame({name: _column(value, len(table)) for name, value in values.items()})
        return frame.assign(time_us=table["latency"].to_numpy(dtype=np.float64) * 1e3)
    except KeyError as error:
        raise InputError(f"{source.name}: column {error} is missing; the tables of 0.12 are known") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{source.name}: {error}; the tables of 0.12 are known") from None


def _column(values: Any, rows: int) -> Any:
    if isinstance(values, str):
        return pd.Categorical.from_codes(np.zeros(rows, dtype=np.int8), [values])
    if isinstance(values, pd.Categorical):
        return values
    if isinstance(values, pd.Series) and values.dtype.kind not in "iuf":
        texts = values.astype("category").cat
        return pd.Categorical(texts.rename_categories(lambda text: NAMES.get(text, text)))
    sizes = np.broadcast_to(np.asarray(values), rows)
    whole = sizes.astype(np.int64)
    if (whole != sizes).any():
        raise ValueError("a size is no whole number")
    return whole.astype(np.int32) if np.abs(whole).max(initial=0) < 2**31 else whole


def _joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """All parts below one another, categories united."""
    columns = {}
    for name in parts[0].columns:
        pieces = [part[name] for part in parts]
        if isinstance(pieces[0].dtype, pd.CategoricalDtype):
            columns[name] = pd.api.types.union_categoricals(pieces)
        else:
            columns[name] = np.concatenate([piece.to_numpy() for piece in pieces])
    return pd.DataFrame(columns)
