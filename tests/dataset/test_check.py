"""Every rule of a dataset, each broken once, named with its row."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.check import Violation, check
from surrogate.dataset.normalise import normalise

Table = Callable[..., pd.DataFrame]


@pytest.fixture
def frame(table: Table) -> pd.DataFrame:
    made = table(3).assign(library="cudnn")
    ok = made["status"] == "ok"
    return normalise(
        made.assign(
            time_us_min=made["time_us"] * 0.9,
            time_us_max=made["time_us"] * 1.1,
            workspace_bytes=np.where(ok, 0.0, np.nan),
        ),
        "test",
    )


def test_a_good_table_has_no_violation(frame: pd.DataFrame) -> None:
    assert check(frame) == []


ROW = 5  # a 3×3 problem's IMPLICIT_PRECOMP_GEMM: ok, ungrouped


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("n", 0, "between 1 and 2147483647"),
        ("c", -16, "between 1"),
        ("pad_w", -1, "between 0"),
        ("k", 2**31, "between 1 and 2147483647"),
        ("groups", 3, "divide c and k"),
        ("direction", "forward", "known: fwd, bwd_data, bwd_filter"),
        ("dtype", "float", "known: fp64, fp32"),
        ("math", "fast", "known: fma"),
        ("layout", "CHWN", "known: NCHW, NHWC"),
        ("status", "fine", "known: ok, not_supported"),
        ("gpu", "", "a name is needed"),
        ("library", None, "a name is needed"),
        ("library_version", None, "a name is needed"),
        ("algorithm", None, "a name is needed"),
        ("r", 99, "exceeds the padded input"),
        ("s", 99, "exceeds the padded input"),
        ("time_us", 0.0, "needs a time above 0"),
        ("time_us", -1.0, "needs a time above 0"),
        ("time_us", np.nan, "needs a time above 0"),
        ("time_us", np.inf, "needs a time above 0"),
        ("time_us_min", 1e9, "least repeat"),
        ("time_us_max", 1e-9, "greatest repeat"),
        ("workspace_bytes", -1.0, "at least 0"),
    ],
)
def test_each_rule_names_its_row(frame: pd.DataFrame, column: str, value: Any, rule: str) -> None:
    broken = frame.copy()
    broken.loc[ROW, column] = value
    found = [v for v in check(broken) if rule in v.rule]
    assert [(v.row, v.column) for v in found] == [(ROW, column)]
    assert f"row {ROW}: {column} is {found[0].value!r}; " in str(found[0])
    assert "\n" not in str(found[0])


def test_a_repeated_row_is_named_where_it_repeats(frame: pd.DataFrame) -> None:
    doubled = pd.concat([frame, frame.iloc[[2]]], ignore_index=True)
    assert check(doubled) == [
        Violation(
            len(frame), "algorithm", frame["algorithm"][2], "the same row stands above; one row per key"
        )
    ]


def test_a_table_to_predict_may_repeat_rows(frame: pd.DataFrame) -> None:
    assert check(pd.concat([frame, frame.iloc[[2]]], ignore_index=True), unique=False) == []


def test_solvers_make_rows_distinct(frame: pd.DataFrame) -> None:
    both = pd.concat([frame.assign(solver="one"), frame.assign(solver="two")], ignore_index=True)
    assert check(both) == []


def test_all_violations_in_the_order_of_rows(frame: pd.DataFrame) -> None:
    broken = frame.drop(columns=["time_us_min", "time_us_max"])
    broken.loc[7, "dtype"] = "float"
    broken.loc[1, "time_us"] = -1.0
    broken.loc[4, "n"] = 0
    assert [(v.row, v.column) for v in check(broken)] == [(1, "time_us"), (4, "n"), (7, "dtype")]


def test_miopen_times_problems_whose_filter_does_not_fit(frame: pd.DataFrame) -> None:
    broken = frame.copy()
    broken.loc[ROW, ["r", "library"]] = [99, "miopen"]
    assert check(broken) == []


def test_rows_that_did_not_run_need_no_time(frame: pd.DataFrame) -> None:
    refused = frame[frame["status"] != "ok"]
    assert len(refused) and refused["time_us"].isna().all()
    assert check(refused.reset_index(drop=True)) == []


def test_a_table_to_predict_needs_neither_status_nor_time(frame: pd.DataFrame) -> None:
    assert (
        check(frame.drop(columns=["status", "time_us", "time_us_min", "time_us_max", "workspace_bytes"]))
        == []
    )


def test_a_problem_too_large_for_64_bits_is_a_violation(frame: pd.DataFrame) -> None:
    """2·N·K·P·Q·C·R·S of these sizes exceeds int64: columns would wrap around to negative FLOPs in silence."""
    broken = frame.copy()
    broken.loc[ROW, ["n", "c", "h", "w", "k"]] = 2**20
    assert [v.row for v in check(broken)] == [ROW]
