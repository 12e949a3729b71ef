"""`merge_runs` turns logs into one dataset: columns, medians over visits, shards, duplicates, clocks, kernels."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from surrogate.collect.device import DeviceInfo, HeuristicEntry
from surrogate.collect.log import Header, RunLog, read_log
from surrogate.collect.merge import merge_runs
from surrogate.dataset.columns import KERNEL_NUMBERS, ROW_KEY, names
from surrogate.features.problem import SIZE_COLUMNS
from tests.known import known_answers

KEY = list(ROW_KEY)


def test_merged_rows_have_the_columns_of_a_dataset(make_plan, record):
    merged = merge_runs([record(make_plan(9))])
    rows = merged.frame
    assert list(rows.columns) == [name for name in names("dataset") if name in rows]
    assert {*ROW_KEY, "status", "time_us"} <= set(rows.columns)
    assert len(rows) == 36 and not rows.duplicated(KEY).any() and merged.candidates == "all"
    assert (rows[list(SIZE_COLUMNS)].dtypes == "int64").all()
    assert rows.time_us.notna().equals(rows.status == "ok")
    assert set(rows.find_time_us[rows.algorithm == "WINOGRAD"]) == {7.5}
    assert rows.find_time_us[rows.algorithm == "IMPLICIT_GEMM"].isna().all()
    for name, values in known_answers(__file__)["merged_columns"].items():
        assert sorted(rows[name].dropna().unique()) == values, name
    row = rows[rows.status == "ok"].iloc[0]
    base = row.time_us_min
    assert (row.time_us, row.time_us_max, row.repeats, row.timer) == (base + 1, base + 3, 5, "cupti")
    assert (row.time_us_mad, row.span_us) == (pytest.approx(1.0), pytest.approx(base + 1.5))


def test_anchors_become_one_row_and_report_their_drift(make_plan, record):
    merged = merge_runs([record(make_plan(300))])
    rows = merged.frame
    assert len(rows) == 1200
    anchored = rows[rows.repeats > 5]
    assert set(anchored.repeats) == {25}
    assert len(merged.metadata["anchors"]) == len(anchored) > 6
    for anchor in merged.metadata["anchors"]:
        assert anchor["visits"] == 5
        assert 0 < anchor["drift"] == anchor["trend"] < 1.01**4 - 1  # each visit of the fake is 1 % slower
    row = anchored.iloc[0]
    base = row.time_us_min
    assert row.time_us == pytest.approx(base * 1.01**2 + 1)  # the third visit's median


def test_merged_shards_equal_the_complete_run(make_plan, record):
    complete = merge_runs([record(make_plan(40), name="complete")]).frame.sort_values(KEY, ignore_index=True)
    paths = [record(make_plan(40, shard=(i, 3)), name=f"shard{i}") for i in (1, 2, 3)]
    pd.testing.assert_frame_equal(merge_runs(paths).frame.sort_values(KEY, ignore_index=True), complete)


def test_a_copy_of_a_run_is_dropped_but_another_run_counts(make_plan, record, tmp_path):
    path = record(make_plan(5))
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[2])
    once = merge_runs([path])
    twice = merge_runs([path, copy])
    pd.testing.assert_frame_equal(once.frame, twice.frame)
    assert once.metadata["duplicates_dropped"] == 0
    assert twice.metadata["duplicates_dropped"] == 21
    other = tmp_path / "other"
    text = path.read_text().splitlines(keepends=True)
    created = text[0].index('"created_s":') + len('"created_s":')
    other.write_text(text[0][:created] + "9" + text[0][created:] + "".join(text[1:]))
    assert set(merge_runs([path, other]).frame.repeats) == {0, 10}


def test_each_device_and_version_has_its_own_rows(make_plan, record, fake_device):
    devices = (("A", "9.1.0"), ("A", "9.2.0"), ("B", "9.1.0"))
    paths = [record(make_plan(3), fake_device(*names), name="".join(names)) for names in devices]
    rows = merge_runs(paths).frame
    assert len(rows) == 3 * 12
    assert len(rows[["gpu", "library_version"]].drop_duplicates()) == 3


def test_slow_clocks_are_flagged(make_plan, record, fake_device):
    device, clocks = fake_device(), iter([(1980.0, 0), (1980.0, 4), (1500.0, 1), (1980.0, 0)])
    device.conditions = lambda: dict(zip(("sm_clock_mhz", "throttle_reasons"), next(clocks), strict=True))
    rows = merge_runs([record(make_plan(4), device)]).frame
    assert rows.throttled.sum() == 4
    assert not (rows.throttled & rows.slow_clock).any()
    assert rows.slow_clock.sum() == 4
    assert set(rows.sm_clock_mhz[rows.slow_clock]) == {1500.0}


def test_clocks_under_load_override_clocks_sampled_later(make_plan, record, fake_device, seer, tmp_path):
    device, throttled = fake_device(), {"sm_clock_mhz": 1200.0, "throttle_reasons": 4}
    device.alter = lambda result, name: replace(result, **throttled if name == "GEMM" else {"sm_clock_mhz": 1800.0})
    rows = merge_runs([record(make_plan(4), device)]).frame  # the fake's idle clock is 1980 MHz
    assert set(rows.sm_clock_mhz) == {1200.0, 1800.0}
    slow = rows.algorithm == "GEMM"
    assert rows.slow_clock.tolist() == rows.throttled.tolist() == slow.tolist()
    rows.to_parquet(tmp_path / "rows.parquet")
    checked = seer("data", "check", tmp_path / "rows.parquet")
    assert checked.code == 0
    assert f"4 of {(rows.status == 'ok').sum()} times were taken while the clock was throttled" in checked.err


def test_kernels_have_the_key_of_their_rows(make_plan, record):
    merged = merge_runs([record(make_plan(6))])
    kernels = merged.kernels
    assert set(kernels.columns) <= {*names("kernels", required=True), *KERNEL_NUMBERS}
    assert len(kernels) == (merged.frame.status == "ok").sum()
    assert set(kernels.blocks) == {16} and "gemm_kernel()" in set(kernels.kernel_name)
    assert set(kernels.kernel_index) == {0}
    joined = kernels.merge(merged.frame, on=KEY, suffixes=("_kernel", ""))
    assert len(joined) == len(kernels)
    assert (joined.time_us_kernel == joined.time_us).all()


def test_find_times_of_another_math_type_are_ignored(make_plan, record, fake_device):
    device = fake_device()
    times_us = {"tensor_op": 3.0, "fma": 4.0}
    device.find = lambda _: tuple(HeuristicEntry("GEMM", "ok", us, math=math) for math, us in times_us.items())
    assert list(merge_runs([record(make_plan(1), device)]).frame.find_time_us.dropna()) == [4.0]


def test_logs_without_rows_are_refused(refused, make_plan, record, tmp_path):
    path = record(make_plan(2))
    cut = tmp_path / "cut"
    cut.write_text(path.read_text().splitlines(keepends=True)[0])
    for paths in ([cut], []):
        with refused("to merge"):
            merge_runs(paths)


def _change_first_measurement(path, change):
    """Rewrite the first measurement of a log by ``change(record)``."""
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if json.loads(line)["kind"] == "measure")
    lines[at] = json.dumps(change(json.loads(lines[at])))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("time_us", [0.0, -1.0, float("inf"), float("nan")])
def test_an_invalid_time_becomes_a_failure(make_plan, record, time_us):
    path = record(make_plan(3))
    result = {"status": "ok", "times_us": [5.0, time_us], "spans_us": [5.0, 6.0]}
    _change_first_measurement(path, lambda measurement: {**measurement, "result": result})
    row = merge_runs([path]).frame.iloc[0]
    assert row["status"] == "failed"
    assert row["reason"].startswith("a repeat of")
    assert pd.isna(row["time_us"])


def test_a_shorter_copy_of_a_log_changes_nothing(make_plan, record, tmp_path):
    """The copy ends before a problem's `done` record, which has the clocks."""
    path = record(make_plan(3))
    lines = path.read_text().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if json.loads(line)["kind"] == "done")
    (tmp_path / "short.jsonl").write_text("".join(lines[:last]))
    pd.testing.assert_frame_equal(merge_runs([tmp_path / "short.jsonl", path]).frame, merge_runs([path]).frame)


PROBLEM = "n{}c16h28w28k32r3s3p0u1 fp32 fma NCHW fwd #0"


def entry(algorithm, status="ok", **more):
    return {"algorithm": algorithm, "deterministic": True, "status": status, "workspace_bytes": 64, **more}


def ranked(path, *rankings, version="9.19.0", gpu="h200-sxm"):
    """Write a log of rankings, one for each problem, and return its path."""
    header = Header(DeviceInfo(gpu, "cudnn-graph", version), "a" * 64, (1, 1), protocol={"heuristic_only": True})
    with RunLog(path, header) as log:
        for n, entries in enumerate(rankings, 1):
            record = {"kind": "problem", "problem": PROBLEM.format(n), "origin": "networks", "candidates": []}
            log.append({**record, "networks": ["Net", "Other"], "heuristic": entries})
    return path


def test_a_configuration_has_the_rank_of_its_first_supported_entry(tmp_path):
    first = [entry("eng9", "not_supported"), entry("eng1_k2=5_k13=-1"), entry("eng0"), entry("eng1_k2=5_k13=-1")]
    merged = merge_runs([ranked(tmp_path / "a.jsonl", first, [], [entry("eng0", deterministic=False)])])
    rows = merged.frame
    assert rows["algorithm"].tolist() == ["eng1_k2=5_k13=-1", "eng0", "eng0"]
    assert rows["engine"].tolist() == [1, 0, 0] and rows["knobs"].tolist() == ["k2=5 k13=-1", "", ""]
    assert rows["heuristic_rank"].tolist() == [1, 2, 1]
    assert rows["heuristic_algorithm"].tolist() == ["eng1_k2=5_k13=-1", "eng1_k2=5_k13=-1", "eng0"]
    assert rows["deterministic"].tolist() == [True, True, False] and rows["networks"][0] == "Net,Other"
    assert rows["n"].tolist() == [1, 1, 3] and merged.metadata["unranked_problems"] == 1
    assert "time_us" not in rows and "status" not in rows and not rows.duplicated(list(ROW_KEY)).any()


def test_rankings_are_separate_by_gpu_and_version_and_the_last_counts(tmp_path):
    options = ({}, {}, {"version": "9.20.0"}, {"gpu": "v100"})
    logs = [ranked(tmp_path / f"{n}.jsonl", [entry(f"eng{n}")], **option) for n, option in enumerate(options, 1)]
    assert merge_runs(logs).frame["algorithm"].tolist() == ["eng2", "eng3", "eng4"]


def test_an_anchor_that_is_listed_at_each_visit_has_its_rows_once(tmp_path):
    path = ranked(tmp_path / "a.jsonl", [entry("eng1"), entry("eng0")])
    header = read_log(path).header
    assert header is not None
    with RunLog(path, header) as log:
        log.append({**log.records[0], "problem": log.records[0]["problem"].replace("#0", "#1")})
    assert merge_runs([path]).frame["algorithm"].tolist() == ["eng1", "eng0"]


def test_empty_rankings_and_mixed_logs_are_refused(refused, tmp_path, make_plan, record):
    empty = ranked(tmp_path / "empty.jsonl", [])
    with refused("to merge"):
        merge_runs([empty])
    measured = record(make_plan(2), name="measured.jsonl")
    with refused("rankings"):
        merge_runs([measured, empty])
