"""A log of rankings becomes a table of its own, without times; it is not mixed with measured runs."""

import json

import pytest

from surrogate.cli import main
from surrogate.collect.device import DeviceInfo
from surrogate.collect.log import Header, RunLog
from surrogate.collect.merge import merge_runs
from surrogate.dataset.schema import ROW_KEY
from surrogate.features.errors import InputError

PROBLEM = "n{}c16h28w28k32r3s3p0u1 fp32 fma NCHW fwd #0"


def entry(algorithm, status="ok", **more):
    return {"algorithm": algorithm, "deterministic": True, "status": status, "workspace_bytes": 64, **more}


def ranked(path, *rankings, version="9.19.0", gpu="h200-sxm"):
    header = Header(
        DeviceInfo(gpu, "cudnn-graph", version), "a" * 64, (1, 1), protocol={"heuristic_only": True}
    )
    with RunLog(path, header) as log:
        for n, entries in enumerate(rankings, 1):
            log.append({
                "kind": "problem", "problem": PROBLEM.format(n), "origin": "networks", "networks": ["Net", "Other"],
                "candidates": [], "heuristic": entries,
            })  # fmt: skip
    return path


def test_an_engine_has_the_place_of_its_first_plan_that_runs(tmp_path):
    first = [
        entry("engine:9", "not_supported"),
        entry("engine:1", knobs=[[2, 5]]),
        entry("engine:0"),
        entry("engine:1"),
    ]
    merged = merge_runs([ranked(tmp_path / "a.jsonl", first, [], [entry("engine:0", deterministic=False)])])
    rows = merged.rows
    assert rows["algorithm"].tolist() == ["engine:1", "engine:0", "engine:0"]
    assert rows["heuristic_rank"].tolist() == [1, 2, 1]
    assert rows["heuristic_algorithm"].tolist() == ["engine:1", "engine:1", "engine:0"]
    assert rows["deterministic"].tolist() == [True, True, False] and rows["networks"][0] == "Net,Other"
    assert rows["n"].tolist() == [1, 1, 3] and merged.metadata["unranked_problems"] == 1
    assert "time_us" not in rows and "status" not in rows and not rows.duplicated(list(ROW_KEY)).any()


def test_gpus_and_versions_stand_apart_and_a_later_ranking_counts(tmp_path):
    logs = [
        ranked(tmp_path / "a.jsonl", [entry("engine:1")]),
        ranked(tmp_path / "b.jsonl", [entry("engine:2")]),
        ranked(tmp_path / "c.jsonl", [entry("engine:3")], version="9.20.0"),
        ranked(tmp_path / "d.jsonl", [entry("engine:4")], gpu="v100"),
    ]
    assert merge_runs(logs).rows["algorithm"].tolist() == ["engine:2", "engine:3", "engine:4"]


def test_nothing_ranked_and_a_mixture_are_refused(tmp_path, make_plan, record):
    empty = ranked(tmp_path / "empty.jsonl", [])
    with pytest.raises(InputError, match="no engine is ranked"):
        merge_runs([empty])
    measured = record(make_plan(2), name="measured.jsonl")
    with pytest.raises(InputError, match="rankings"):
        merge_runs([measured, empty])


def test_the_command_writes_the_table(tmp_path, monkeypatch, capsys):
    import pandas as pd

    log = ranked(tmp_path / "a.jsonl", [entry("engine:1"), entry("engine:0")])
    monkeypatch.setattr(
        "sys.argv", ["seer", "data", "merge", str(log), "-o", str(tmp_path / "picks.parquet")]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code and "picks.parquet: 2 rows" in capsys.readouterr().out
    assert pd.read_parquet(tmp_path / "picks.parquet")["heuristic_rank"].tolist() == [1, 2]


def test_a_damaged_entry_is_one_line(tmp_path):
    log = ranked(tmp_path / "a.jsonl", [entry("engine:1")])
    lines = log.read_text().splitlines()
    broken = json.loads(lines[1])
    broken["heuristic"] = [{"algorithm": "engine:1"}]
    log.write_text(f"{lines[0]}\n{json.dumps(broken)}\n")
    with pytest.raises(InputError, match=r"a\.jsonl: a record is damaged"):
        merge_runs([log])
