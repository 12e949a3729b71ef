"""Tables from results: known cells, and what is left out."""

from typing import Any

from surrogate.report.choice_tables import choice_table, gpu_table, paired_table, split_table, stratum_table
from surrogate.report.reasons import reasons
from surrogate.report.time_tables import part_tables, time_table, time_tables

ROW: dict[str, Any] = {
    "model": "m", "split": "shape", "stratum": "ungrouped", "gpu": "all", "n": 40, "shapes": 8,
    "slowdown_macro": 1.0125, "ci_low": 1.01, "ci_high": 1.015, "slowdown_geomean": 1.011,
    "slowdown_p95": 1.07, "slowdown_max": 50.4, "top1": 0.75, "within_10pct": 0.964, "top2_slowdown": 1.002,
    "infeasible_picks": 3, "paired_vs_heuristic": [-0.075, -0.04, -0.014],
}  # fmt: skip


def _texts(table: Any) -> list[list[str]]:
    return [[cell.text for cell in line.cells] for line in table.lines]


def test_known_choice_row() -> None:
    table = choice_table({"choice_rows": [ROW], "time_rows": []})
    assert _texts(table) == [["m", "1.012", "1.010–1.015", "1.011", "1.070", "50.4", "96.4", "1.002"]]
    assert table.note == "40 problems of 8 shapes"


def test_known_paired_row() -> None:
    table = paired_table({"choice_rows": [ROW], "time_rows": []})
    assert _texts(table) == [["m", "−3.9", "−7.2 to −1.4", "75.0", "3", "40"]]


def test_without_a_heuristic_hits_and_counts_stand_alone() -> None:
    table = paired_table({"choice_rows": [{**ROW, "paired_vs_heuristic": None}], "time_rows": []})
    assert table.title.startswith("Picks of the best algorithm, ") and "cuDNN" not in table.title
    assert table.columns == ("model", "best %", "infeasible", "problems")
    assert _texts(table) == [["m", "75.0", "3", "40"]]


def test_the_heuristic_is_not_paired_with_itself() -> None:
    table = paired_table({"choice_rows": [{**ROW, "model": "cudnn-heuristic"}], "time_rows": []})
    assert _texts(table)[0][1:3] == ["–", "–"]


def test_known_time_row() -> None:
    row = {"model": "m", "population": "best", "n": 1000, "median_ape": 0.0724, "mape": 0.12, "p90_ape": 0.55,
           "rmspe": 0.3, "gmae": 0.061, "spearman": 0.99}  # fmt: skip
    table = time_table({"choice_rows": [], "time_rows": [row]}, "best")
    assert _texts(table) == [["m", "7.2", "12.0", "55.0", "30.0", "6.1", "0.990", "1,000"]]


def test_the_best_learned_model_is_marked_once_per_table(results: dict[str, Any]) -> None:
    for table in (choice_table(results), *time_tables(results)):
        marked = [line.cells[0].text for line in table.lines if any(cell.best for cell in line.cells)]
        assert marked == ["booster"]


def test_every_stratum_and_gpu_is_a_line(results: dict[str, Any]) -> None:
    strata, gpus = stratum_table(results), gpu_table(results)
    assert strata and [line.cells[0].text for line in strata.lines] == [
        "ungrouped", "1x1s1", "1x1s2", "3x3s1", "grouped", "other", "all",
    ]  # fmt: skip
    assert gpus and len(gpus.lines) == 4 and gpus.columns[:3] == ("GPU", "shapes", "booster")
    assert all(len(line.cells) == len(gpus.columns) for line in gpus.lines)


def test_a_model_judged_on_one_gpu_only_has_dashes_elsewhere(results: dict[str, Any]) -> None:
    results["choice_rows"].append({**ROW, "model": "local", "gpu": "Tesla T4"})
    table = gpu_table(results)
    assert table is not None
    column = table.columns.index("local")
    shown = {line.cells[0].text: line.cells[column].text for line in table.lines}
    assert shown == {"Tesla K80": "–", "Tesla T4": "1.012", "Tesla V100-SXM2-16GB": "–", "TITAN Xp": "–"}


def test_one_stratum_gpu_and_split_make_no_tables() -> None:
    results = {"choice_rows": [ROW], "time_rows": []}
    assert stratum_table(results) is gpu_table(results) is split_table(results) is None
    assert part_tables(results) == []


def test_several_splits_are_laid_side_by_side(results: dict[str, Any]) -> None:
    results["choice_rows"] += [{**row, "split": "random"} for row in results["choice_rows"]]
    table = split_table(results)
    assert table is not None and [line.cells[0].text for line in table.lines] == ["random", "shape"]


def test_part_tables_show_the_best_model(results: dict[str, Any]) -> None:
    titles = [table.title for table in part_tables(results)]
    assert titles == ["Time error by algorithm, booster", "Time error by GPU, booster"]


def test_reasons_are_grouped_and_counted(results: dict[str, Any]) -> None:
    for place, row in enumerate(row for row in results["choice_rows"] if row["model"] == "seer-paper"):
        row |= {"n": place == 0, "stratum": f"part {place}"}
    (reason,) = reasons(results)
    assert reason.model == "seer-paper" and len(reason.slices) == 9
    assert reason.slices[0].startswith("choice: part 1") and "fwd" not in reason.where  # fwd are all of them
    assert reason.where.endswith("and 5 more")


def test_a_model_judged_nowhere_has_no_list_of_slices(results: dict[str, Any]) -> None:
    (reason,) = reasons(results)
    assert reason.model == "seer-paper" and reason.where == "choice"


def test_a_reason_does_not_repeat_the_model() -> None:
    rows = [{"model": "m", "n": 0, "reason": "m needs counters"}]
    (reason,) = reasons({"choice_rows": rows, "time_rows": rows})
    assert reason.reason == "needs counters" and reason.where == "choice; time"


def test_a_row_without_a_reason_says_so() -> None:
    (reason,) = reasons({"choice_rows": [{"model": "m", "n": 0}], "time_rows": []})
    assert reason.reason == "no reason was recorded"
