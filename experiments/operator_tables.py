"""Read public tables of measured operators (matrix products, pooling, normalisation, pointwise) as their families'
rows.

The columns of a file identify its kind:

- ``dense_ops``: PyTorch's operators on seven GPUs, from sitar-lab/NeuSight.
- ``cudnn_other_ops``: cuDNN and cuBLAS calls on eight GPUs, from rai-project/dlperf.
- ``cudnn_other_ops_p100_v100``: cuDNN calls on a P100 and a V100, from c3sr/scope.
- ``network_layer_sequences``: the pooling layers of rai-project/dlperf's networks on seven GPUs.
- ``deepbench_gemm``: matrix products, from baidu-research/DeepBench.
- ``gemm_tensile``: AMD's matrix products, the tuned winners of ROCm/rocBLAS.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from experiments.sources import own_settings
from surrogate import InputError, gpu
from surrogate.dataset.tables import read_table
from surrogate.features.problem import DTYPES
from surrogate.features.terms import output_size
from surrogate.formats.imported import family_rows
from surrogate.formats.tensile import settings_of

_NAMES = own_settings(__file__)
KINDS = {(op, variant): kind for op, kinds in _NAMES["operations"].items() for variant, kind in kinds.items()}
"""(op, variant) of a file → operator and variant of a dataset."""
POOL: dict[str, str] = _NAMES["pool"]
"""Size of a pool → its column in a table of convolutions."""


def read_operator_tables(paths: Sequence[str | Path]) -> pd.DataFrame:
    """Return the files as rows of one dataset. Files that `seer import` wrote need no conversion.

    Raises `InputError` for a file with other columns.
    """
    tables = {Path(path).name: read_table(path)[0] for path in paths}
    measured = [table if "family" in table else operator_rows(table, name) for name, table in tables.items()]
    return family_rows(pd.concat(measured, ignore_index=True))


def operator_rows(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a raw table as input of `family_rows`: its known operators on registered GPUs, with registered names.

    Raises `InputError` if no reader fits the columns, or if no row is left.
    """
    present = set(frame.columns)
    source = next(((reader, origin) for needed, reader, origin in READERS if present.issuperset(needed)), None)
    if source is None:
        required = "; or ".join(", ".join(needed) for needed, *_ in READERS)
        raise InputError(f"{name}: the columns fit no table of operators; give a table with {required}")
    reader, origin = source
    parts = [part.assign(gpu=_registered(part["gpu"], "name")).dropna(subset="gpu") for part in reader(frame)]
    if not sum(map(len, parts)):
        raise InputError(f"{name}: no row has a registered operator and GPU")
    return pd.concat(parts, ignore_index=True).assign(origin=origin)


def _registered(names: pd.Series, fact: str) -> pd.Series:
    """Return a fact of each GPU (rows,) from the registry. The fact is missing for an unregistered GPU."""
    facts = {}
    for name in names.unique():
        with suppress(InputError):
            facts[name] = getattr(gpu(name), fact)
    return names.map(facts)


# dense_ops: `bmm` and `linear` compute (M × K) = (M × N)·(N × K). The launched grids show that the reduction is over N.
# The other operators have sizes B × H. A trailing u means that the second tensor is a number. The times are of isolated
# calls and include the framework's launch overhead, 15 to 100 µs. TF32 is off in PyTorch. AMD's fp32 matrix cores need
# no option: MI100 is faster than its vector peak.
# On the P4, the linear layers of the table's training part ran at a fifth of the peak. The test part has other kernels
# at three quarters. The training part is dropped, because models would transfer its times to other GPUs.


def _dense(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    if "split" in frame:
        frame = frame[(frame["gpu"] != "Tesla P4") | (frame["op"] != "linear") | (frame["split"] != "train")]
    frame = frame[frame["op"].isin(_NAMES["dense"])]
    for op, part in frame.groupby(frame["op"].astype(str)):
        if op in ("bmm", "linear"):
            sizes = {"batch": part["B"], "m": part["M"], "n": part["K"], "k": part["N"]}
        else:
            sizes = {"n": part["B"], "c": part["H"], "h": 1, "w": 1}
        version = part["Torch Version"].str.removeprefix("p") if "Torch Version" in part else None
        math = _registered(part["gpu"], "vendor").eq("amd").map({True: "default", False: "fma"})
        labels = {"operator": _NAMES["dense"][op], "library": "torch", "library_version": version, "math": math}
        yield part[["gpu", "time_us"]].assign(**labels, **sizes)


# deepbench_gemm: C (M × N) = A·B over K. The variant is the transposes `ta tb`; NN has no transpose.
def _deepbench(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    part = frame[frame["precision"].isin(_NAMES["precisions"])]
    rows = {
        "operator": "gemm",
        "gpu": part["device"],
        "library_version": part.get("cuda"),
        "library": _registered(part["device"], "vendor").eq("amd").map({True: "rocblas", False: "cublas"}),
        "variant": (part["ta"].astype(str) + part["tb"].astype(str)).replace("NN", ""),
        "dtype": part["precision"].map(_NAMES["precisions"]).str[0],
        "math": part["precision"].map(_NAMES["precisions"]).str[1],
        "batch": 1,
        "m": part["M"],
        "n": part["N"],
        "k": part["K"],
        "time_us": part["time_ms"] * 1e3,
    }
    yield pd.DataFrame(rows, index=part.index)


# gemm_tensile: the rows that `seer import tensile` reads from the logic files.
def _tensile(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    yield settings_of(frame.drop(columns=["gflops", "solution"], errors="ignore"))


# cudnn_other_ops: the sizes are one text, `key=value;key=value;…`. This grammar was inferred from the rows. Keys are
# `name` or `name[i]`, values are integers.
# - Activation, batch norm, op tensor: input[0..3] = n, c, h, w (input[0..1] = n, c of a matrix).
# - Add tensor: the same, with bias[0..3] = 1, c, 1, 1.
# - Pooling: the same, with filter_height filter_width pad_height pad_width stride_height stride_width.
# - GEMM: input[0..2] = M, N, K, then transposes (0, 1 everywhere: NT), α and β.
# - GEMV: input[0..1] = M, K (n = 1), then the transpose, α, β.
# - `batch_size` is the network's batch: input[0] repeats it, and GEMV does not depend on it.
# - `iterations` marks another harness, whose times are 8 to 6,000 times longer and hardly depend on sizes: dropped.
_PAIR = re.compile(r"([a-z_]+(?:\[\d\])?)=(\d+)")


def parse_args(text: str) -> dict[str, int] | None:
    """Return key → value of an ``args`` text; None if a part is not a pair, or if a key occurs twice."""
    matches = [_PAIR.fullmatch(part) for part in text.split(";")]
    pairs = {match[1]: int(match[2]) for match in matches if match}
    return pairs if len(pairs) == len(matches) else None


def sizes_of(kind: str, variant: str, args: dict[str, int]) -> dict[str, int] | None:
    """Return an operator's sizes from parsed arguments; None if some are missing."""
    inputs = [args.get(f"input[{i}]") for i in range(4)]
    if kind == "gemm":
        m, n, k = (inputs[0], 1, inputs[1]) if variant == "GEMV" else inputs[:3]
        sizes = {"batch": 1, "m": m, "n": n, "k": k}
    else:
        sizes = dict(zip("nchw", inputs, strict=True))
        if "pool" in kind:
            sizes |= {size: args.get(argument) for size, argument in _NAMES["pool_arguments"].items()}
        elif inputs[2:] == [None, None]:
            sizes |= {"h": 1, "w": 1}
    complete = {name: size for name, size in sizes.items() if size is not None}
    return complete if len(complete) == len(sizes) else None


def _packed(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    rows, positions = [], []
    parsed = {text: parse_args(text) or {} for text in frame["args"].unique()}
    variants = frame["variant"].fillna("").astype(str)
    for position, (op, variant, text) in enumerate(zip(frame["op"], variants, frame["args"], strict=True)):
        kind, mode = KINDS.get((op, variant), ("", ""))
        sizes = None if "iterations" in parsed[text] or not kind else sizes_of(kind, mode, parsed[text])
        if sizes:
            library = "cublas" if op.startswith("CUBLAS") else "cudnn"
            rows.append({"operator": kind, "variant": mode, "library": library, **sizes})
            positions.append(position)
    measured = frame.iloc[positions].reset_index(drop=True)
    columns = measured[["gpu", "dtype", "time_us"]].assign(library_version=measured["cudnn"])
    yield pd.concat([pd.DataFrame(rows), columns], axis=1)


# cudnn_other_ops_p100_v100: a row has the sizes of the convolution of the call. The operator's tensor is the *output*
# of that convolution, n × k × p × q: the rank correlation of times with its elements is 0.99, with the input's 0.6.
# Softmax in instance mode reduces over c·h·w. Pooling is dropped: its window is not in the columns. Times are the same
# for windows of 1 × 1 and 7 × 7, and repeated calls of one problem differ by up to 163 times.
_SCOPE_VERSION = "7.x(2018-07/08)"


def _of_convolutions(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    frame = frame[frame["dtype"].isin(DTYPES)]
    for key, part in frame.groupby([frame["op"].astype(str), frame["variant"].fillna("").astype(str)]):
        kind, mode = KINDS.get((str(key[0]), str(key[1])), ("", ""))
        if not kind or "pool" in kind:
            continue
        c = part["k"]
        h = output_size(part["h"], part["r"], part["pad_h"], part["stride_h"], 1)
        w = output_size(part["w"], part["s"], part["pad_w"], part["stride_w"], 1)
        if str(key[1]).endswith("SOFTMAX_MODE_INSTANCE"):
            c, h, w = c * h * w, 1, 1
        labels = {"operator": kind, "variant": mode, "library": "cudnn", "library_version": _SCOPE_VERSION}
        yield part[["gpu", "dtype", "time_us"]].assign(**labels, n=part["n"], c=c, h=h, w=w)


# network_layer_sequences: each layer has the time of its faster mode. The modes of a pool agree within 0.5 % where both
# were measured, so they are one variant.
def _layers(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    pools = frame[frame["op"] == "CUDNN_POOLING_FWD"]
    kind = [KINDS[str(op), str(mode)][0] for op, mode in zip(pools["op"], pools["variant"], strict=True)]
    columns = ["gpu", "library_version", "time_us", *"nchw"]
    rows = pools[columns].assign(operator=kind, library="cudnn", **{size: pools[name] for size, name in POOL.items()})
    yield rows.drop_duplicates()


READERS: tuple[tuple[tuple[str, ...], Callable[[pd.DataFrame], Iterator[pd.DataFrame]], str], ...] = (
    (("gpu", "cudnn", "op", "args", "time_us"), _packed, "dlperf"),
    (("gpu", "op", "variant", "dtype", "pad_h", "time_us"), _of_convolutions, "c3sr_scope"),
    (("gpu", "network", "layer_idx", "op", "time_us"), _layers, "dlperf"),
    (("gpu", "op", "B", "H", "time_us"), _dense, "neusight"),
    (("gpu", "tensile_type", "transposes", "time_us"), _tensile, "rocblas"),
    (("device", "precision", "M", "N", "K", "time_ms"), _deepbench, "deepbench"),
)
"""(columns that identify the kind of table, its reader, its origin); the first match is used."""
