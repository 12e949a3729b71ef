"""Tests of a comparison's sentences and tables: a golden file, known sentences and cells, models without results."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surrogate.report import summary
from surrogate.report.tables import Cell, Table
from tests.known import cases, known_answers

GOLDEN = Path(__file__).with_name("summary.txt")
ROW = known_answers(__file__)["row"]
REFERENCES = {"conv": {"seer": "seer-time-only", "linear": "linear-terms", "heuristic": "cudnn-heuristic"}}


def _texts(table: Table) -> list[list[str]]:
    """Return the cells that a page shows, row by row."""
    rows = re.findall(r"<tr>(.*)</tr>\n", table.__html__())
    return [re.findall(r"<t[dh][^>]*>([^<]*)<", row) for row in rows]


def _results(*rows: dict[str, Any], times: Sequence[dict[str, Any]] = (), reported: str | None = "m") -> dict[str, Any]:
    models = {"reported": {"conv": reported}, "references": REFERENCES}
    return {"schema": 2, "choice_rows": list(rows), "time_rows": list(times), **models}


def _choice_row(results: dict[str, Any], model: str, stratum: str = "ungrouped") -> dict[str, Any]:
    """Return the choice row of a model over all GPUs."""
    place = (model, stratum, "all")
    (row,) = [row for row in results["choice_rows"] if (row["model"], row["stratum"], row["gpu"]) == place]
    return row


def _best_columns(table: Table) -> list[str]:
    """Return the column of the best cell of each row that has one."""
    cells = [(head, cell) for record in table.records for head, cell in record.items()]
    return [head for head, cell in cells if isinstance(cell, Cell) and cell.best]


SEER = {**ROW, "model": "seer-time-only"}
HEURISTIC = {**ROW, "model": "cudnn-heuristic", "slowdown_macro": 1.05, "n": 30}


@cases(__file__)
def test_the_first_sentence_answers_whether_the_model_is_faster(ends: list[float], sentence: str) -> None:
    ((first, *rest),) = summary.answers(_results({**ROW, "paired_vs_seer": ends}, SEER))
    assert first == sentence and len(first.split()) <= 25
    problems = "8 shapes, ungrouped problems; 95 % interval 1.0 to 1.5 %"
    assert rest == [f"The picks of m are 1.2 % slower than the fastest algorithm ({problems})."]
    assert summary.terminal_summary(_results({**ROW, "paired_vs_seer": ends}, SEER)).startswith(first[:60])


@cases(__file__)
def test_the_answer_compares_with_the_next_reference_if_one_is_missing(left_out, beginning) -> None:
    ends = {"seer": [-0.03, -0.02, -0.01], "linear": [-0.04, -0.03, -0.02], "heuristic": ROW["paired_vs_heuristic"]}
    row = {**ROW, **{f"paired_vs_{kind}": None if kind in left_out else ends[kind] for kind in ends}}
    others = [SEER, {**ROW, "model": "linear-terms"}, HEURISTIC]
    ((first, *_),) = summary.answers(_results(row, *others))
    assert first.startswith(beginning)


def test_the_best_of_the_first_ten_is_a_reference_with_a_sentence_and_a_column() -> None:
    best = {**ROW, "model": "best-of-first-ten", "slowdown_macro": 1.0}
    results = _results({**ROW, "paired_vs_first_ten": [0.01, 0.02, 0.03]}, best)
    results["references"] = {"conv": {"first_ten": "best-of-first-ten"}}
    words = "of m take 2.0 % more time than the best of the heuristic's first ten (best-of-first-ten; 95 % interval"
    assert any(words in sentence for sentence in summary.answers(results)[0])
    table = summary.choice_tables(results)[-1]
    assert "vs best of first ten" in table.records[0] and table.references == 1


def test_a_model_that_was_not_fixed_in_advance_gets_no_verdict() -> None:
    results = _results({**ROW, "paired_vs_seer": [-0.03, -0.02, -0.01]}, {**SEER, "slowdown_macro": 1.1}, reported=None)
    assert summary.answers(results)[0][0].startswith("On held-out shapes, the picks of m take 2.0 % less time")


def test_the_answer_also_compares_trees_time_errors_and_the_heuristic(results: dict[str, Any]) -> None:
    (sentences,) = summary.answers(results)
    beginnings = known_answers(__file__)["beginnings"]
    for sentence, beginning in zip(sentences, beginnings, strict=True):
        assert sentence.startswith(beginning) and len(sentence.split()) <= 26


def test_the_answer_is_about_time_errors_if_there_are_no_choices(results: dict[str, Any]) -> None:
    results["choice_rows"] = []
    ((first, *_),) = summary.answers(results)
    assert first.startswith("Yes: on held-out shapes, the median time error of stacked-terms on ungrouped problems is")
    assert first.endswith("20.0 points less than SEER's 29.2 % (95 % interval 19.0 to 21.0).")


def test_the_papers_model_is_compared_if_it_was_evaluated(results: dict[str, Any]) -> None:
    results["references"]["conv"]["paper"] = "seer-paper"
    assert "counters" not in " ".join(summary.answers(results)[0])
    _choice_row(results, "stacked-terms")["paired_vs_paper"] = [-0.05, -0.04, -0.03]
    paper = _choice_row(results, "seer-paper")
    paper |= {**_choice_row(results, "seer-time-only"), "model": "seer-paper"}
    sentence = "The picks of stacked-terms take 4.0 % less time than the picks of SEER's fits to counters (seer-paper;"
    assert any(text.startswith(sentence) for text in summary.answers(results)[0])


def test_the_sentence_on_the_heuristic_has_two_slowdowns_of_the_same_problems() -> None:
    """The model's slowdown on them follows from the paired difference."""
    row = {**ROW, "paired_vs_heuristic": [-0.09, -0.02, -0.01], "paired_problems": 30}
    known = "m is 2.9 % slower than the fastest algorithm, cuDNN's heuristic 5.0 %."
    sentence = f"On the 30 problems with a pick of cuDNN's heuristic, {known}"
    assert sentence in summary.answers(_results(row, HEURISTIC))[0]
    (sentences,) = summary.answers(_results(row, {**HEURISTIC, "n": 31}))
    assert len(sentences) == 2 and "On the 3" not in " ".join(sentences)  # not the same problems


def test_a_choice_row_has_known_cells() -> None:
    (table,) = summary.choice_tables(_results({**ROW, "paired_vs_heuristic": None}))
    expected = ["m", "1.012", "1.010–1.015", "1.011", "1.070", "50.4", "96.4", "1.002", "75.0", "3"]
    assert _texts(table) == [expected]
    assert table.note == "40 problems of 8 shapes" and table.columns[-2:] == ["best %", "infeasible"]


def test_differences_are_relative_and_no_reference_is_compared_with_itself() -> None:
    rows = [
        {**ROW, "paired_vs_seer": [-0.048, -0.0285, -0.013]},
        {**SEER, "paired_vs_seer": [0, 0, 0], "paired_vs_heuristic": None},
        {**HEURISTIC, "paired_vs_seer": [-0.014, 0.015, 0.045], "paired_vs_heuristic": [0, 0, 0]},
    ]
    _, table = summary.choice_tables(_results(*rows))
    assert table.columns == ["model", "vs SEER's fits", "vs cuDNN's heuristic"]
    assert _texts(table) == [
        ["m", "−2.9 [−4.8, −1.3]", "−3.9 [−7.2, −1.4]"],
        ["seer-time-only", "–", "–"],
        ["cudnn-heuristic", "+1.5 [−1.4, +4.5]", "–"],
    ]
    text = summary.terminal_summary(_results(ROW, {**HEURISTIC, "model": "tunanet"}))
    assert "vs cuDNN's heuristic" not in text  # the reference has no evaluated row


def test_every_reference_is_a_column(results: dict[str, Any]) -> None:
    heads = ["vs SEER's fits", "vs best linear (linear-terms)", "vs boosted trees", "vs cuDNN's heuristic"]
    _, table = summary.choice_tables(results)
    assert table.columns == ["model", *heads]
    lines = table.text(summary.WIDTH).splitlines()
    assert max(map(len, lines)) <= summary.WIDTH and all(any(head in line for line in lines) for head in heads)
    times = summary.time_tables(results)[-1]
    assert times.columns == ["model", *heads[:3]] and _texts(times)[0][1] == "−20.0 [−21.0, −19.0]"


def test_a_time_row_has_known_cells() -> None:
    row = {"model": "m", "population": "best", "n": 1000, "median_ape": 0.0724, "mape": 0.12, "p90_ape": 0.55}
    row |= {"rmspe": 0.3, "gmae": 0.061, "spearman": 0.99}
    (table,) = summary.time_tables(_results(times=[row]))
    assert _texts(table) == [["m", "7.2", "12.0", "55.0", "30.0", "6.1", "0.990", "1,000"]]


def test_the_best_learned_model_is_marked_once_per_table(results: dict[str, Any]) -> None:
    tables = [summary.choice_tables(results)[0], *summary.time_tables(results)[:-1]]
    for table in tables:
        cells = [(row["model"], cell) for row in table.records for cell in row.values()]
        assert [model for model, cell in cells if isinstance(cell, Cell) and cell.best] == ["stacked-terms"]
    assert len(tables) == 4


def test_every_stratum_and_gpu_is_a_row(results: dict[str, Any]) -> None:
    results["choice_rows"].append({**ROW, "model": "local", "gpu": "Tesla T4"})
    strata, gpus = summary.slice_tables(results)
    assert [row[0] for row in _texts(strata)] == ["ungrouped", "1x1s1", "1x1s2", "3x3s1", "grouped", "other", "all"]
    assert gpus.columns[:3] == ["GPU", "shapes", "stacked-terms"]
    at = gpus.columns.index("local")
    slowdowns = {row[0]: row[at] for row in _texts(gpus)}
    assert slowdowns == {"Tesla K80": "–", "Tesla T4": "1.012", "Tesla V100-SXM2-16GB": "–", "TITAN Xp": "–"}


def test_one_stratum_and_gpu_make_no_tables() -> None:
    assert summary.slice_tables(_results(ROW)) == [] == summary.part_tables(_results(ROW))


def test_time_tables_by_algorithm_and_gpu_mark_the_best_model(results: dict[str, Any]) -> None:
    for row in results["time_rows"]:
        if (row["model"], row.get("algorithm")) == ("seer-time-only", "WINOGRAD"):
            row["median_ape"] = 0.0123
    algorithms, strata, gpus = summary.part_tables(results)
    models = ["stacked-terms", "boosted-terms", "linear-terms", "seer-time-only", "roofline"]
    assert algorithms.columns == ["algorithm", "rows", *models] and gpus.columns == ["GPU", "rows", *models]
    assert _best_columns(algorithms) == ["stacked-terms", "stacked-terms", "seer-time-only"]
    assert _texts(algorithms)[2][0] == "WINOGRAD" and _texts(algorithms)[2][5] == "1.2"
    assert '<td class="best">1.2</td>' in algorithms.__html__()
    assert _best_columns(gpus) == ["stacked-terms"] * 4 and len(strata.records) == 1
    text = summary.terminal_summary(results)
    (line,) = [line for line in text.splitlines() if line.startswith("WINOGRAD")]
    assert line.split() == ["WINOGRAD", "8,000", "11.3", "25.6", "1.2*"]  # the reported model and two references


def test_coverage_importance_and_costs_have_known_cells(results: dict[str, Any]) -> None:
    kinds = ("coverage", "importance", "costs")
    (coverage,), (importance,), (costs,) = (summary.evidence_tables(results, kind) for kind in kinds)
    assert coverage.title.endswith(", stacked-terms") and importance.title.endswith(", boosted-terms")
    assert _texts(coverage)[0] == ["all", "all", "90.0", "91.2", "89.2–93.2", "1.310", "33,000", "264"]
    assert _texts(coverage)[2][:4] == ["t4", "fp16", "90.0", "85.3"]
    assert [row[1:] for row in _texts(importance)[:2]] == [["0.700", "0.100"], ["0.247", "0.050"]]
    assert len(importance.records) == 20 and "<summary>5 more</summary>" in importance.__html__()
    assert ["stacked-terms", "0.5", "15.3", "36", "30"] in _texts(costs) and len(costs.records) == 5
    assert summary.evidence_tables(_results(ROW), "costs") == []


def test_models_without_evaluated_rows_are_in_one_line_and_in_no_table(results: dict[str, Any]) -> None:
    kinds = (summary.choice_tables, summary.time_tables, summary.slice_tables, summary.part_tables)
    tables = [table for tables_of in kinds for table in tables_of(results)]
    assert len(tables) == 2 + 4 + 2 + 3
    for table in tables:
        text = table.text()
        assert "seer-paper" not in text and "configurations" not in text
    assert summary.not_evaluated(results) == (
        "Not evaluated: seer-paper (needs kernel metrics <b>grid & block</b>, which this data lacks), configurations"
        " (is for described kernels, not conv), always-best-single (times: it ranks algorithms and predicts no time)."
    )
    assert " ".join(summary.terminal_summary(results).split()).count("seer-paper") == 1
    assert summary.not_evaluated(_results(ROW)) == ""


def test_long_reasons_are_cut_at_a_clause_or_at_90_characters() -> None:
    rows = [{"model": name, "n": 0, "reason": reason} for name, reason in {"a": "x; y", "b": "word " * 30}.items()]
    line = summary.not_evaluated({"choice_rows": rows, "time_rows": []})
    assert line.startswith("Not evaluated: a (choices: x), b (choices: word word") and line.endswith("word…).")
    assert len(line) < 150


def test_each_family_has_its_tables_and_its_answer(results: dict[str, Any]) -> None:
    gemm = {**ROW, "model": "other", "family": "gemm", "stratum": "all"}
    results["choice_rows"].append(gemm)
    titles = [table.title.split(":")[0] for table in summary.choice_tables(results)]
    assert titles == ["conv", "conv", "gemm"]
    text = summary.terminal_summary(results)
    assert text.startswith("conv: Yes: on held-out shapes, the picks of stacked-terms")
    assert "\n\ngemm: On held-out shapes, the picks of other are 1.2 %" in text
    assert max(map(len, text.splitlines())) <= summary.WIDTH
    assert "seer-paper (conv choices, conv times: needs" in " ".join(text.split())


def test_reasons_are_complete_and_name_the_missing_tables(results: dict[str, Any]) -> None:
    _choice_row(results, "seer-paper")["n"] = 1
    records = {record["model"]: record for record in summary.reasons(results)}
    assert records["seer-paper"]["where"] == "some choices; times"
    assert "seer-paper (times: needs" in summary.not_evaluated(results)
    reason = "is for described kernels, not conv; use boosted-terms"
    assert records["configurations"] == {"model": "configurations", "where": "choices; times", "reason": reason}


def test_the_summary_equals_the_golden_file(results: dict[str, Any]) -> None:
    assert summary.terminal_summary(results) + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_the_summary_of_no_rows_is_one_sentence() -> None:
    text = summary.terminal_summary({"schema": 2, "time_rows": [], "choice_rows": []})
    assert text == "No model could be evaluated on this data; the reasons are listed."
