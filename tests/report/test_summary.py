"""A comparison in words and tables: a golden file, known cells, and what is left out."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surrogate.report import summary
from surrogate.report.tables import Cell, Table
from tests.known import known

KNOWN = known(__file__)

GOLDEN = Path(__file__).with_name("summary.txt")
ROW = KNOWN["row"]


def _texts(table: Table) -> list[list[str]]:
    """What a page shows, row by row."""
    rows = re.findall(r"<tr>(.*)</tr>\n", table.__html__())
    return [re.findall(r"<t[dh][^>]*>([^<]*)<", row) for row in rows]


def _judged(*rows: dict[str, Any], times: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"schema": 1, "choice_rows": list(rows), "time_rows": list(times)}


def test_known_choice_and_paired_row() -> None:
    slowdowns, paired = summary.choice_tables(_judged(ROW))
    assert _texts(slowdowns) == [["m", "1.012", "1.010–1.015", "1.011", "1.070", "50.4", "96.4", "1.002"]]
    assert slowdowns.note == "40 problems of 8 shapes"
    assert _texts(paired) == [["m", "−3.9", "−7.2 to −1.4", "30", "75.0", "3"]]


def test_without_a_heuristic_hits_and_counts_stand_alone() -> None:
    _, table = summary.choice_tables(_judged({**ROW, "paired_vs_heuristic": None}))
    assert table.title.startswith("Picks of the best algorithm, ")
    assert table.columns == ["model", "best %", "infeasible", "problems"]
    assert _texts(table) == [["m", "75.0", "3", "40"]]


def test_the_heuristic_is_not_paired_with_itself() -> None:
    _, table = summary.choice_tables(_judged(ROW, {**ROW, "model": "cudnn-heuristic"}))
    assert [row[1:3] for row in _texts(table)] == [["−3.9", "−7.2 to −1.4"], ["–", "–"]]
    text = summary.terminal_summary(_judged(ROW, {**ROW, "model": "tunanet"}))
    assert "those of TunaNet are" in text and "Paired against TunaNet" in text


def test_known_time_row() -> None:
    row = {"model": "m", "population": "best", "n": 1000, "median_ape": 0.0724, "mape": 0.12, "p90_ape": 0.55,
           "rmspe": 0.3, "gmae": 0.061, "spearman": 0.99}  # fmt: skip
    (table,) = summary.time_tables(_judged(times=[row]))
    assert _texts(table) == [["m", "7.2", "12.0", "55.0", "30.0", "6.1", "0.990", "1,000"]]


def test_the_best_learned_model_is_marked_once_per_table(results: dict[str, Any]) -> None:
    for table in (summary.choice_tables(results)[0], *summary.time_tables(results)):
        cells = [(row["model"], cell) for row in table.records for cell in row.values()]
        assert [model for model, cell in cells if isinstance(cell, Cell) and cell.best] == ["booster"]


def test_every_stratum_and_gpu_is_a_row(results: dict[str, Any]) -> None:
    results["choice_rows"].append({**ROW, "model": "local", "gpu": "Tesla T4"})
    strata, gpus = summary.slice_tables(results)
    assert [row[0] for row in _texts(strata)] == ["ungrouped", "1x1s1", "1x1s2", "3x3s1", "grouped", "other", "all"]
    assert gpus.columns[:3] == ["GPU", "shapes", "booster"]
    at = gpus.columns.index("local")
    shown = {row[0]: row[at] for row in _texts(gpus)}
    assert shown == {"Tesla K80": "–", "Tesla T4": "1.012", "Tesla V100-SXM2-16GB": "–", "TITAN Xp": "–"}


def test_one_stratum_and_gpu_make_no_tables() -> None:
    assert summary.slice_tables(_judged(ROW)) == [] == summary.part_tables(_judged(ROW))


def test_part_tables_show_the_best_model(results: dict[str, Any]) -> None:
    titles = [table.title for table in summary.part_tables(results)]
    assert titles == ["Time error by algorithm, booster", "Time error by GPU, booster"]


def test_of_several_families_each_has_its_tables_and_its_answer(results: dict[str, Any]) -> None:
    gemm = {**ROW, "model": "other", "family": "gemm", "stratum": "all"}
    results["choice_rows"] = [{**row, "family": "conv"} for row in results["choice_rows"]] + [gemm]
    titles = [table.title.split(":")[0] for table in summary.choice_tables(results)]
    assert titles == ["conv", "conv", "conv", "gemm", "gemm"]
    text = summary.terminal_summary(results)
    assert text.startswith("conv: The picks of booster") and "\n\ngemm: The picks of other are 1.2 %" in text
    assert max(map(len, text.splitlines())) <= summary.WIDTH


def test_reasons_are_grouped_and_counted(results: dict[str, Any]) -> None:
    for i, row in enumerate(row for row in results["choice_rows"] if row["model"] == "seer-paper"):
        row |= {"n": i == 0, "stratum": f"part {i}"}
    (reason,) = summary.reasons(results)
    assert reason["model"] == "seer-paper"
    assert reason["where"].startswith("choice: part 1") and reason["where"].endswith("and 5 more")
    assert "fwd" not in reason["where"]  # that are all of them


def test_a_reason_does_not_repeat_the_model() -> None:
    rows = [{"model": "m", "n": 0, "reason": "m needs counters"}]
    (reason,) = summary.reasons({"choice_rows": rows, "time_rows": rows})
    assert reason["reason"] == "needs counters" and reason["where"] == "choice; time"


def test_summary_is_the_golden_file(results: dict[str, Any]) -> None:
    assert summary.terminal_summary(results) + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_the_answer_compares_paired(results: dict[str, Any]) -> None:
    assert "less time than the heuristic's" in " ".join(summary.terminal_summary(results).split())
    for row in results["choice_rows"]:
        row["paired_vs_heuristic"] = [-0.02, 0.001, 0.02]
    assert "cannot be told apart (+0.1 % time" in " ".join(summary.terminal_summary(results).split())


def test_the_answer_says_where_the_heuristic_covers_less(results: dict[str, Any]) -> None:
    for row in results["choice_rows"]:
        if row["model"] == "cudnn-heuristic":
            row |= {"n": 17, "slowdown_macro": 1.05}
        row |= {"paired_problems": 17, "paired_vs_heuristic": [-0.02, math.log(1.1 / 1.05), 0.02]}
    text = " ".join(summary.terminal_summary(results).split())
    assert "Of these 1,060 problems, 17 have a pick of cuDNN's heuristic" in text
    assert "there it is 5.0 % slower, the model's 10.0 %" in text
    assert "cudnn-heuristic on 17" in text


def test_nothing_at_all() -> None:
    text = summary.terminal_summary({"schema": 1, "time_rows": [], "choice_rows": []})
    assert text == "No model could be judged on this data; the reasons are listed."
