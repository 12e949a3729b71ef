"""Public tables of operators: inferred formats, dropped rows, and the complete files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.operator_tables import operator_rows, parse_args, sizes_of
from surrogate.features.families import FAMILIES
from surrogate.formats.imported import family_rows
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)

IMAGE = "input[0]=1;input[1]=2;input[2]=3;input[3]=4"
CONV = ANSWERS["conv"]


def packed(op: str, args: str, variant: str | None = None, **changes: Any) -> dict[str, Any]:
    """Return one row of ``cudnn_other_ops``."""
    row = {"gpu": "Tesla T4", "cudnn": "7.6.3", "op": op, "variant": variant, "dtype": "fp32", "args": args}
    return {**row, "time_us": 10.0, **changes}


def rows_of(*rows: dict[str, Any]) -> pd.DataFrame:
    """Return the dataset rows of a raw table."""
    return family_rows(operator_rows(pd.DataFrame(rows), "x"))


@cases(__file__)
def test_packed_arguments_are_read_as_sizes(kind, variant, text, expected) -> None:
    args = parse_args(text)
    assert args is not None and sizes_of(kind, variant, args) == expected


def test_rows_of_unknown_operators_or_gpus_are_dropped() -> None:
    """Rows of another benchmark and rows with unreadable arguments are also dropped."""
    texts = (IMAGE, f"{IMAGE};iterations=10", "input[0]=?")
    activations = (packed("CUDNN_ACTIVATION_FWD", text, "ACTIVATION_RELU") for text in texts)
    product = packed("CUBLAS_GEMM_FWD", "input[0]=16;input[1]=1000;input[2]=2048;input[3]=0")
    unknown = packed("CUDNN_ADD_TENSOR", IMAGE, gpu="Abacus 3000")
    rows = rows_of(*activations, packed("CUDNN_REDUCE", IMAGE), product, unknown)
    columns = ["family", "library", "operator", "variant", "gpu", "n", "k"]
    assert rows[columns].to_numpy().tolist() == ANSWERS["known_operators"]


def test_repeated_rows_of_a_version_become_their_median() -> None:
    relu = packed("CUDNN_ACTIVATION_FWD", IMAGE, "ACTIVATION_RELU")
    times = ((9.0, "7.6.10"), (11.0, "7.6.10"), (50.0, "7.6.9"))
    rows = rows_of(*({**relu, "time_us": time_us, "cudnn": version} for time_us, version in times))
    found = rows[["library_version", "time_us", "repeats"]].to_numpy().tolist()
    assert found == [["7.6.10", 10.0, 2], ["7.6.9", 50.0, 1]]


def test_scope_operators_have_the_size_of_the_convolution_output() -> None:
    """Convolutions, unknown variants and pooling are dropped: the columns of a pool do not hold its window."""
    rows = rows_of(*({**CONV, "op": op, "variant": variant} for op, variant in ANSWERS["scope_operators"]))
    by_kind = rows.set_index("operator")
    assert by_kind.loc["tanh_backward", ["n", "c", "h", "w"]].tolist() == [2, 8, 8, 8]
    assert by_kind.loc["softmax", ["n", "c", "h", "w", "variant"]].tolist() == [2, 512, 1, 1, "FAST"]
    assert sorted(by_kind.index) == ["batch_norm", "softmax", "tanh_backward"]


def test_pools_come_from_the_layers_of_networks() -> None:
    """Layers that occur several times are one row, and the modes of a pool are one variant."""
    layer = {"gpu": "Tesla T4", "network": "VGG16", "layer_idx": 3, "library_version": "7.6.3"}
    sizes = {"n": 1, "c": 64, "h": 224, "w": 224, "r": 2, "s": 3, "pad_h": 0, "pad_w": 1, "stride_h": 2, "stride_w": 2}
    pool = {**layer, **sizes, "op": "CUDNN_POOLING_FWD", "variant": "POOLING_MAX_DETERMINISTIC", "time_us": 28.1}
    rows = rows_of(pool, {**pool, "layer_idx": 9}, {**pool, "op": "CUDNN_CONV_FWD", "variant": "GEMM"})
    columns = ["operator", "variant", "h", "window", "window_w", "pad", "pad_w", "time_us", "repeats"]
    assert rows[columns].to_numpy().tolist() == [["max_pool", "", 224, 2, 3, 0, 1, 28.1, 1]]


def test_dense_rows_have_sizes_and_math_types() -> None:
    """A product has K columns and sums over N; AMD's matrix units are used by default."""
    products = {"M": 39.0, "N": 90.0, "K": 192.0, "H": np.nan}
    bmm = {"op": "bmm", "gpu": "Tesla T4", "Torch Version": "p2.1.0", "B": 4, **products, "time_us": 9.0}
    norm = {"op": "ln", "gpu": "AMD Instinct MI100", "B": 4, "H": 256.0, "time_us": 9.0}
    rows = rows_of(bmm, norm, {**norm, "op": "odd", "gpu": "Tesla T4"})
    by_kind = rows.set_index("operator")
    columns = ["batch", "m", "n", "k", "math", "library_version"]
    assert by_kind.loc["bmm", columns].tolist() == [4, 39, 192, 90, "fma", "2.1.0"]
    assert by_kind.loc["layer_norm", ["n", "c", *columns[-2:]]].tolist() == [4, 256, "default", "unknown"]
    assert len(rows) == 2


def test_deepbench_rows_have_dtypes_and_math_types() -> None:
    fp16 = "16 bit inputs, 16 bit multiplication, 32 bit addition"
    row = {"device": "NV_V100", "M": 1, "N": 2, "K": 3, "ta": "T", "tb": "N", "time_ms": 0.5, "cuda": "9.0"}
    amd = {**row, "device": "AMD_MI25", "precision": "Float", "ta": "N"}
    rows = rows_of({**row, "precision": fp16}, {**row, "precision": "odd"}, amd)
    columns = ["gpu", "library", "dtype", "math", "variant", "time_us", "origin"]
    assert rows[columns].to_numpy().tolist() == ANSWERS["deepbench"]


@cases(__file__)
def test_public_files_are_imported_completely(measurements: Path, name: str, rows: int, dropped: int) -> None:
    """Every row is used or counted as dropped, and every problem is valid for its family."""
    raw = pd.read_parquet(measurements / f"{name}.parquet")
    imported = family_rows(operator_rows(raw, name))
    assert len(imported) == rows
    assert imported["repeats"].sum() + dropped == len(raw)
    assert (imported["time_us"] > 0).all()
    for (family, kind), part in imported.groupby(["family", "operator"]):
        sizes = {size: part[size].to_numpy() for size in FAMILIES[str(family)].size_names}
        FAMILIES[str(family)].problem(sizes, {"operator": str(kind)})
