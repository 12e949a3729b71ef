"""A raw table becomes a checked one: spellings, defaults, types, and every broken rule by its row."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.checks import check, normalise, unit_warnings
from surrogate.dataset.problems import families_of
from surrogate.features.errors import InputError
from tests.known import cases, known

KNOWN = known(__file__)

Table = Callable[..., pd.DataFrame]


def test_spellings_and_types(table: Table) -> None:
    frame = table(1).assign(layout="NHWC-NHWC-NHWC", mine="kept").astype({"n": "int8", "time_us": "float32"})
    out = normalise(frame, "test")
    assert set(out["layout"]) == {"NHWC"} and set(out["mine"]) == {"kept"} and set(out["family"]) == {"conv"}
    assert out["n"].dtype == np.int64 and out["time_us"].dtype == np.float64
    assert check(out) == []


def test_families_take_their_defaults() -> None:
    rows = KNOWN["test_families_take_their_defaults"]["rows"]
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
    assert [kind.name for kind in families_of(both)] == ["gemm"] and check(both) == []


@pytest.mark.parametrize("value", [1.5, "many", float("nan")])
def test_a_size_that_is_no_whole_number_is_named(refused, table: Table, value: Any) -> None:
    frame = table(1).astype({"c": object})
    frame.loc[2, "c"] = value
    with refused("row 3", f"c is {value!r}"):
        normalise(frame, "test")


@pytest.mark.parametrize("column", ["c", "time_us"])
def test_a_missing_column_is_named(table: Table, column: str) -> None:
    with pytest.raises(InputError, match=rf"column {column} missing"):
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
    violations = check(frame)
    assert [(v.row, v.column) for v in violations if rule in v.rule] == [(3, column)], violations
    assert violations[0].row == 3


def test_a_key_stands_once(table: Table) -> None:
    frame = normalise(pd.concat([table(1), table(1).iloc[:1]]), "test")
    assert [(v.row, v.column) for v in check(frame)] == [(len(frame) - 1, "algorithm")]
    assert check(frame.assign(solver=[str(i) for i in range(len(frame))])) == []


def test_miopen_times_filters_that_do_not_fit(table: Table) -> None:
    frame = normalise(table(1).assign(r=99), "test")
    assert check(frame) and check(frame.assign(library="miopen")) == []


@pytest.mark.parametrize(("factor", "unit"), [(1e-3, "ms"), (1e3, "ns"), (1e-6, "s")])
def test_times_in_another_unit_are_noticed(table: Table, factor: float, unit: str) -> None:
    frame = normalise(table(6, gpus=["Tesla T4"]), "test")
    assert unit_warnings(frame) == []
    (warning,) = unit_warnings(frame.assign(time_us=frame["time_us"] * factor))
    assert warning.startswith("Tesla T4") and warning.endswith(f"{unit}?")
    assert unit_warnings(frame.assign(gpu="nobody's")) == []
