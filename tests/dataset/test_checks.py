"""`normalise` unifies spellings, types and defaults; `find_violations` names the row of every broken rule."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.checks import find_violations, normalise, unit_warnings
from surrogate.dataset.problems import families_of
from surrogate.features.errors import InputError
from tests.known import cases
from tests.tables import Table


def test_normalise_unifies_spellings_and_types(table: Table) -> None:
    frame = table(1).assign(layout="NHWC-NHWC-NHWC", mine="kept").astype({"n": "int8", "time_us": "float32"})
    out = normalise(frame, "test")
    assert set(out["layout"]) == {"NHWC"} and set(out["mine"]) == {"kept"} and set(out["family"]) == {"conv"}
    assert out["n"].dtype == np.int64 and out["time_us"].dtype == np.float64
    assert find_violations(out) == []


def test_normalise_fills_defaults_of_other_families() -> None:
    base = {"gpu": "v100", "library": "torch", "library_version": "2.1", "status": "ok", "time_us": 10.0}
    softmax = normalise(pd.DataFrame([{**base, "operator": "softmax", "n": 32, "c": 1000}]), "test")
    defaults = {"family": "rowwise", "h": 1, "w": 1, "variant": "", "algorithm": "default"}
    defaults |= {"dtype": "fp32", "math": "fma"}
    assert softmax.loc[0, list(defaults)].to_dict() == defaults
    sizes = {**base, "m": 8, "n": 4, "k": 2}
    gemms = [{**sizes, "family": "gemm", "algorithm": "TN"}, {**sizes, "family": "linear", "operator": "linear"}]
    products = normalise(pd.DataFrame(gemms), "test")
    assert products["family"].tolist() == ["gemm", "gemm"]
    assert products["operator"].tolist() == ["gemm", "linear"]
    assert products["batch"].tolist() == [1, 1]
    assert products["algorithm"].tolist() == ["TN", "default"]
    assert [family.name for family in families_of(products)] == ["gemm"]
    assert find_violations(products) == []


@pytest.mark.parametrize("value", [1.5, "many", float("nan")])
def test_normalise_refuses_a_size_that_is_not_an_integer(refused, table: Table, value: Any) -> None:
    frame = table(1).astype({"c": object})
    frame.loc[2, "c"] = value
    with refused("row 3", f"c is {value!r}"):
        normalise(frame, "test")


@pytest.mark.parametrize("column", ["c", "time_us"])
def test_normalise_refuses_a_missing_column(table: Table, column: str) -> None:
    with pytest.raises(InputError, match=rf"column {column} (is )?missing"):
        normalise(table(1).drop(columns=column), "test")


def test_normalise_suggests_a_family_for_an_unknown_one(refused, table: Table) -> None:
    with refused("gemm"):
        normalise(table(1).assign(family="gem"), "test")


@cases(__file__)
def test_find_violations_names_the_row_and_the_rule(table: Table, column: str, value: Any, rule: str) -> None:
    frame = table(1)
    frame = frame.assign(time_us_min=frame["time_us"], time_us_max=frame["time_us"], workspace_bytes=0.0)
    frame = normalise(frame[frame["status"] == "ok"], "test").astype({column: object} if value is None else {})
    frame.loc[3, column] = value
    violations = find_violations(frame)
    assert [(v.row, v.column) for v in violations if rule in v.rule] == [(3, column)], violations
    assert violations[0].row == 3


def test_find_violations_reports_a_duplicate_key(table: Table) -> None:
    frame = normalise(pd.concat([table(1), table(1).iloc[:1]]), "test")
    assert [(v.row, v.column) for v in find_violations(frame)] == [(len(frame) - 1, "algorithm")]
    assert find_violations(frame.assign(solver=[str(i) for i in range(len(frame))])) == []


def test_find_violations_accepts_oversized_filters_of_miopen(table: Table) -> None:
    frame = normalise(table(1).assign(r=99), "test")
    assert find_violations(frame) and find_violations(frame.assign(library="miopen")) == []


@pytest.mark.parametrize(("factor", "unit"), [(1e-3, "ms"), (1e3, "ns"), (1e-6, "s")])
def test_unit_warnings_name_the_likely_unit(table: Table, factor: float, unit: str) -> None:
    frame = normalise(table(6, gpus=["Tesla T4"]), "test")
    assert unit_warnings(frame) == []
    (warning,) = unit_warnings(frame.assign(time_us=frame["time_us"] * factor))
    assert warning.startswith("Tesla T4") and warning.endswith(f"{unit}?")
    assert unit_warnings(frame.assign(gpu="unknown GPU")) == []


def test_normalise_infers_convolution_settings_from_sizes() -> None:
    sizes = {"n": 8, "c": 64, "h": 56, "k": 64, "r": 3}
    times_us = {"v100": 120.0, "a100-sxm-40gb": 80.0, "mi210": float("nan")}
    rows = [{"gpu": gpu, **sizes, "algorithm": "winograd", "time_us": time_us} for gpu, time_us in times_us.items()]
    out = normalise(pd.DataFrame(rows), "own.csv")
    assert find_violations(out) == []
    assert out["library"].tolist() == ["cudnn", "cudnn", "miopen"] and set(out["library_version"]) == {""}
    assert out["math"].tolist() == ["fma", "default", "fma"]  # TF32 is what PyTorch runs on an A100
    assert out["status"].tolist() == ["ok", "ok", "failed"]
    assert out[["w", "s", "pad_h", "stride_w", "groups"]].to_numpy().tolist() == [[56, 3, 0, 1, 1]] * 3


def test_normalise_reads_problem_texts_like_size_columns() -> None:
    base = {"gpu": "v100", "library": "torch", "time_us": 5.0}
    texts = [{**base, "problem": text} for text in ("gemm:m8n4k2", "softmax:n32c1000")]
    operators = [{**base, "op": "linear", "m": 8, "n": 4, "k": 2}, {**base, "op": "softmax", "n": 32, "c": 1000}]
    from_text, from_sizes = (normalise(pd.DataFrame(rows), "test") for rows in (texts, operators))
    assert from_text["family"].tolist() == from_sizes["family"].tolist() == ["gemm", "rowwise"]
    assert from_text["operator"].tolist() == ["gemm", "softmax"]
    assert from_sizes["operator"].tolist() == ["linear", "softmax"]
    names = ["m", "n", "k", "c", "dtype"]
    assert from_text[names].to_numpy().tolist() == from_sizes[names].to_numpy().tolist()
    assert find_violations(from_text) == find_violations(from_sizes) == []


def test_normalise_refuses_configurations_of_an_undescribed_kernel(refused) -> None:
    rows = [{"gpu": "v100", "m": m, "n": 4, "k": 2, "tile": tile, "time_us": 5.0} for m in (8, 16) for tile in (1, 2)]
    with refused("--sizes m,n,k --parameters tile"):
        normalise(pd.DataFrame(rows), "own.csv")
