"""A raw table becomes a checked one: spellings, defaults, types, and every broken rule by its row."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.checks import find_violations, normalise, unit_warnings
from surrogate.dataset.problems import families_of
from surrogate.features.errors import InputError
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)

Table = Callable[..., pd.DataFrame]


def test_spellings_and_types(table: Table) -> None:
    frame = table(1).assign(layout="NHWC-NHWC-NHWC", mine="kept").astype({"n": "int8", "time_us": "float32"})
    out = normalise(frame, "test")
    assert set(out["layout"]) == {"NHWC"} and set(out["mine"]) == {"kept"} and set(out["family"]) == {"conv"}
    assert out["n"].dtype == np.int64 and out["time_us"].dtype == np.float64
    assert find_violations(out) == []


def test_families_take_their_defaults() -> None:
    rows = ANSWERS["test_families_take_their_defaults"]["rows"]
    out = normalise(pd.DataFrame(rows[:1]), "test")
    assert out.loc[0, ["family", "h", "w", "dtype", "math", "variant", "algorithm"]].tolist() == [
        "rowwise",
        1,
        1,
        "fp32",
        "fma",
        "",
        "default",
    ]
    both = normalise(pd.DataFrame(rows[1:]), "test")
    assert both["family"].tolist() == ["gemm", "gemm"] and both["operator"].tolist() == ["gemm", "linear"]
    assert both["batch"].tolist() == [1, 1] and both["algorithm"].tolist() == ["TN", "default"]
    assert [kind.name for kind in families_of(both)] == ["gemm"] and find_violations(both) == []


@pytest.mark.parametrize("value", [1.5, "many", float("nan")])
def test_a_size_that_is_no_whole_number_is_named(refused, table: Table, value: Any) -> None:
    frame = table(1).astype({"c": object})
    frame.loc[2, "c"] = value
    with refused("row 3", f"c is {value!r}"):
        normalise(frame, "test")


@pytest.mark.parametrize("column", ["c", "time_us"])
def test_a_missing_column_is_named(table: Table, column: str) -> None:
    with pytest.raises(InputError, match=rf"column {column} (is )?missing"):
        normalise(table(1).drop(columns=column), "test")


def test_an_unknown_family_is_named(refused, table: Table) -> None:
    with refused("gemm"):
        normalise(table(1).assign(family="gem"), "test")


@cases(__file__)
def test_every_broken_rule_is_named_with_its_row(table: Table, column: str, value: Any, rule: str) -> None:
    frame = table(1)
    frame = frame.assign(time_us_min=frame["time_us"], time_us_max=frame["time_us"], workspace_bytes=0.0)
    frame = normalise(frame[frame["status"] == "ok"], "test").astype({column: object} if value is None else {})
    frame.loc[3, column] = value
    violations = find_violations(frame)
    assert [(v.row, v.column) for v in violations if rule in v.rule] == [(3, column)], violations
    assert violations[0].row == 3


def test_a_key_stands_once(table: Table) -> None:
    frame = normalise(pd.concat([table(1), table(1).iloc[:1]]), "test")
    assert [(v.row, v.column) for v in find_violations(frame)] == [(len(frame) - 1, "algorithm")]
    assert find_violations(frame.assign(solver=[str(i) for i in range(len(frame))])) == []


def test_miopen_times_filters_that_do_not_fit(table: Table) -> None:
    frame = normalise(table(1).assign(r=99), "test")
    assert find_violations(frame) and find_violations(frame.assign(library="miopen")) == []


@pytest.mark.parametrize(("factor", "unit"), [(1e-3, "ms"), (1e3, "ns"), (1e-6, "s")])
def test_times_in_another_unit_are_noticed(table: Table, factor: float, unit: str) -> None:
    frame = normalise(table(6, gpus=["Tesla T4"]), "test")
    assert unit_warnings(frame) == []
    (warning,) = unit_warnings(frame.assign(time_us=frame["time_us"] * factor))
    assert warning.startswith("Tesla T4") and warning.endswith(f"{unit}?")
    assert unit_warnings(frame.assign(gpu="nobody's")) == []


def test_gpu_sizes_algorithm_and_time_are_a_table_of_convolutions() -> None:
    sizes = {"n": 8, "c": 64, "h": 56, "k": 64, "r": 3}
    rows = [{"gpu": gpu, **sizes, "algorithm": "winograd", "time_us": us} for gpu, us in ANSWERS["own_table"].items()]
    out = normalise(pd.DataFrame(rows), "own.csv")
    assert find_violations(out) == []
    assert out["library"].tolist() == ["cudnn", "cudnn", "miopen"] and set(out["library_version"]) == {""}
    assert out["math"].tolist() == ["fma", "default", "fma"]  # TF32 is what PyTorch runs on an A100
    assert out["status"].tolist() == ["ok", "ok", "failed"]
    assert out[["w", "s", "pad_h", "stride_w", "groups"]].to_numpy().tolist() == [[56, 3, 0, 1, 1]] * 3


def test_a_row_names_its_problem_as_in_a_table_of_questions() -> None:
    base = {"gpu": "v100", "library": "torch", "time_us": 5.0}
    texts = [{**base, "problem": text} for text in ("gemm:m8n4k2", "softmax:n32c1000")]
    operators = [{**base, "op": "linear", "m": 8, "n": 4, "k": 2}, {**base, "op": "softmax", "n": 32, "c": 1000}]
    named, sized = (normalise(pd.DataFrame(rows), "test") for rows in (texts, operators))
    assert named["family"].tolist() == sized["family"].tolist() == ["gemm", "rowwise"]
    assert named["operator"].tolist() == ["gemm", "softmax"] and sized["operator"].tolist() == ["linear", "softmax"]
    names = ["m", "n", "k", "c", "dtype"]
    assert named[names].to_numpy().tolist() == sized[names].to_numpy().tolist()
    assert find_violations(named) == find_violations(sized) == []


def test_sizes_of_one_family_name_it(refused) -> None:
    row = {"gpu": "v100", "library": "cublas", "m": 8, "n": 4, "k": 2, "time_us": 5.0}
    assert normalise(pd.DataFrame([row]), "test")["family"].tolist() == ["gemm"]
    with refused("time_us", "missing"):
        normalise(pd.DataFrame([row]).drop(columns="time_us"), "test")
    with refused("no column names a problem"):
        normalise(pd.DataFrame([{"gpu": "v100", "time_us": 5.0}]), "test")


def test_configurations_of_a_kernel_that_nothing_describes_are_no_family_s(refused) -> None:
    rows = [{"gpu": "v100", "m": m, "n": 4, "k": 2, "tile": tile, "time_us": 5.0} for m in (8, 16) for tile in (1, 2)]
    with refused("--sizes m,n,k --parameters tile"):
        normalise(pd.DataFrame(rows), "own.csv")
