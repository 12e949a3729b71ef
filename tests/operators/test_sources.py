"""Readers: the inferred grammars, what is dropped, and the real files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from surrogate.features.errors import InputError
from surrogate.operators.deepbench import read_deepbench
from surrogate.operators.dense import read_dense
from surrogate.operators.other_ops import parse_args, read_other_ops, sizes_of
from surrogate.operators.own import read_own
from surrogate.operators.scope_ops import read_scope_ops
from surrogate.operators.table import make_table, read_operators

POOL = (
    "input[0]=4;input[1]=64;input[2]=112;input[3]=96;filter_height=3;filter_width=2;pad_height=1;pad_width=0;"
    "stride_height=2;stride_width=1;batch_size=4"
)


def other(
    op: str, args: str, variant: str | None = None, time_us: float = 10.0, **changes: str
) -> dict[str, object]:
    """One row of ``cudnn_other_ops``."""
    row = {"gpu": "Tesla T4", "cudnn": "7.6.3", "op": op, "variant": variant, "dtype": "fp32", "args": args}
    return {**row, "time_us": time_us, **changes}


def test_parse_args() -> None:
    assert parse_args("input[0]=16;batch_size=8") == {"input[0]": 16, "batch_size": 8}
    assert parse_args("input[0]=x") is None
    assert parse_args("input[0]=1;input[0]=2") is None
    assert parse_args("") is None


@pytest.mark.parametrize(
    ("kind", "variant", "text", "expected"),
    [
        (
            "gemm",
            "NT",
            "input[0]=16;input[1]=1000;input[2]=2048",
            {"batch": 1, "m": 16, "n": 1000, "k": 2048},
        ),
        ("gemm", "GEMV", "input[0]=8;input[1]=1024;input[2]=0", {"batch": 1, "m": 8, "n": 1, "k": 1024}),
        ("relu", "", "input[0]=256;input[1]=4096", {"n": 256, "c": 4096, "h": 1, "w": 1}),
        (
            "bias",
            "",
            "input[0]=1;input[1]=2;input[2]=3;input[3]=4;bias[1]=2",
            {"n": 1, "c": 2, "h": 3, "w": 4},
        ),
        (
            "max_pool",
            "",
            POOL,
            {
                "n": 4,
                "c": 64,
                "h": 112,
                "w": 96,
                "window": 3,
                "window_w": 2,
                "pad": 1,
                "pad_w": 0,
                "stride": 2,
            }
            | {"stride_w": 1},
        ),
        ("max_pool", "", "input[0]=4;input[1]=64", None),
    ],
)
def test_sizes(kind: str, variant: str, text: str, expected: dict[str, int] | None) -> None:
    args = parse_args(text)
    assert args is not None
    assert sizes_of(kind, variant, args) == expected


def test_other_ops_counts_and_names_what_it_drops() -> None:
    image = "input[0]=1;input[1]=2;input[2]=3;input[3]=4"
    rows = [
        other("CUDNN_ACTIVATION_FWD", image, "ACTIVATION_RELU"),
        other("CUDNN_ACTIVATION_FWD", f"{image};iterations=10", "ACTIVATION_RELU"),
        other("CUDNN_ACTIVATION_FWD", "input[0]=?", "ACTIVATION_RELU"),
        other("CUDNN_REDUCE", image),
        other("CUBLAS_GEMM_FWD", "input[0]=16;input[1]=1000;input[2]=2048;input[3]=0"),
    ]
    parts, dropped = read_other_ops(pd.DataFrame(rows))
    assert dropped == {
        "timed by another harness (iterations)": 1,
        "args of CUDNN_ACTIVATION_FWD unreadable": 1,
        "operator CUDNN_REDUCE unknown": 1,
    }
    table = make_table(parts, dropped, "x")
    assert table.frame["library"].tolist() == ["cudnn", "cublas"]
    assert table.frame["gpu"].tolist() == ["t4", "t4"]


def test_newest_version_counts_and_repeats_are_merged() -> None:
    image = "input[0]=1;input[1]=2;input[2]=3;input[3]=4"
    rows = [
        other("CUDNN_ACTIVATION_FWD", image, "ACTIVATION_RELU", time_us, cudnn=version)
        for time_us, version in ((9.0, "7.6.10"), (11.0, "7.6.10"), (50.0, "7.6.9"))
    ]
    parts, dropped = read_other_ops(pd.DataFrame(rows))
    assert make_table(parts, dropped, "x").time_us.tolist() == [10.0]


def test_scope_ops_use_the_convolutions_output() -> None:
    row = {
        "gpu": "Tesla P100-SXM2-16GB",
        "dtype": "fp32",
        "n": 2,
        "c": 3,
        "h": 16,
        "w": 16,
        "k": 8,
        "r": 3,
        "s": 3,
    }
    row |= {"pad_h": 1, "pad_w": 1, "stride_h": 2, "stride_w": 2, "time_us": 7.0}
    rows = [
        row | {"op": "CUDNN_ACTIVATION_BWD", "variant": "ACTIVATION_TANH"},
        row | {"op": "CUDNN_SOFTMAX_FWD", "variant": "SOFTMAX_FAST, SOFTMAX_MODE_INSTANCE"},
        row | {"op": "CUDNN_BATCHNORM_FWD", "variant": "BATCHNORM_SPATIAL, true"},
        row | {"op": "CUDNN_CONV_BIAS_ACTIVATION_FWD", "variant": "anything"},
        row | {"op": "CUDNN_SOFTMAX_FWD", "variant": "SOFTMAX_ODD"},
    ]
    parts, dropped = read_scope_ops(pd.DataFrame(rows))
    found = make_table(parts, dropped, "x").frame.set_index("kind")
    assert found.loc["tanh_backward", ["n", "c", "h", "w"]].tolist() == [2, 8, 8, 8]
    assert found.loc["softmax", ["n", "c", "h", "w", "variant"]].tolist() == [2, 512, 1, 1, "FAST"]
    assert "batch_norm" in found.index
    assert dropped == {
        "CUDNN_CONV_BIAS_ACTIVATION_FWD is a convolution": 1,
        "operator CUDNN_SOFTMAX_FWD unknown": 1,
    }


def test_dense_sizes_and_maths() -> None:
    rows = [
        {
            "op": "bmm",
            "gpu": "Tesla T4",
            "B": 4,
            "M": 39.0,
            "N": 90.0,
            "K": 192.0,
            "H": np.nan,
            "time_us": 9.0,
        },
        {"op": "ln", "gpu": "AMD Instinct MI100", "B": 4, "H": 256.0, "time_us": 9.0},
        {"op": "odd", "gpu": "Tesla T4", "B": 4, "H": 256.0, "time_us": 9.0},
    ]
    parts, dropped = read_dense(pd.DataFrame(rows))
    found = make_table(parts, dropped, "x").frame.set_index("kind")
    assert found.loc["bmm", ["batch", "m", "n", "k", "math"]].tolist() == [4, 39, 192, 90, "fma"]
    assert found.loc["layer_norm", ["n", "c", "math"]].tolist() == [4, 256, "default"]
    assert dropped == {"operator odd unknown": 1}


def test_deepbench_precisions() -> None:
    row = {"device": "NV_V100", "M": 1, "N": 2, "K": 3, "ta": "T", "tb": "N", "time_ms": 0.5}
    fp16 = "16 bit inputs, 16 bit multiplication, 32 bit addition"
    frame = pd.DataFrame([row | {"precision": fp16}, row | {"precision": "odd"}])
    parts, dropped = read_deepbench(frame)
    found = make_table(parts, dropped, "x").frame.iloc[0]
    assert found[["dtype", "math", "variant", "time_us"]].tolist() == ["fp16", "default", "TN", 500.0]
    assert dropped == {"precision 'odd' unknown": 1}


def test_own_tables() -> None:
    row = {
        "gpu": "NVIDIA H200",
        "library": "cuda",
        "library_version": "9",
        "operator": "max_pool",
        "status": "ok",
    }
    row |= {"n": 1, "c": 2, "h": 8, "w": 8, "window": 3, "stride": 2, "time_us": 4.0}
    frame = pd.DataFrame([row, row | {"status": "failed"}, row | {"operator": "odd"}])
    parts, dropped = read_own(frame)
    found = make_table(parts, dropped, "x").frame.iloc[0]
    assert found[["gpu", "window_w", "stride_w", "pad"]].tolist() == ["h200-sxm", 3, 2, 0]
    assert dropped == {"max_pool: status not ok": 1, "operator odd unknown": 1}


def test_unknown_devices_are_named() -> None:
    frame = pd.DataFrame([other("CUDNN_OP_TENSOR_ADD_FWD", "input[0]=1;input[1]=1", gpu="Abacus 3000")])
    with pytest.raises(InputError, match=r"no row is left .*device Abacus 3000 unknown: 1"):
        make_table(*read_other_ops(frame), "x")


def test_a_file_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="fit no table of operators"):
        read_operators([tmp_path / "x.parquet"])
    with pytest.raises(InputError, match="no such file"):
        read_operators([tmp_path / "missing.parquet"])
    with pytest.raises(InputError, match="no table of operators given"):
        read_operators([])


def test_real_files(shared_data: Path) -> None:
    """Every row is used or counted, and the shapes of folds leave the batch out."""
    names = ("cudnn_other_ops.parquet", "cudnn_other_ops_p100_v100.parquet", "deepbench_gemm.parquet")
    table = read_operators([shared_data / name for name in names])
    assert table.dropped["timed by another harness (iterations)"] == 2754
    assert not [reason for reason in table.dropped if "unreadable" in reason]
    assert {"softmax_backward", "batch_norm", "gemm", "dropout"} <= set(table.frame["kind"])
    assert (table.time_us > 0).all()
    image = (table.frame["kind"] == "relu").to_numpy()
    assert len(set(table.shape_names()[image])) < len(
        table.frame[image].drop_duplicates(["n", "c", "h", "w"])
    )
