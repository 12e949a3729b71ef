"""The terminal's summary: a golden file, and its shape under odd data."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.report.choice_tables import Cell, Line, Table
from surrogate.report.terminal import NAME_WIDTH, WIDTH, terminal_summary, text_table

GOLDEN = Path(__file__).with_name("summary.txt")


def test_summary_is_the_golden_file(results: dict[str, Any]) -> None:
    assert terminal_summary(results) + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_summary_fits_eighty_columns(results: dict[str, Any]) -> None:
    assert max(map(len, terminal_summary(results).splitlines())) <= WIDTH


def test_no_trailing_blanks_and_no_control_letters(results: dict[str, Any]) -> None:
    results["choice_rows"][0]["model"] = "boo\x1b[31mster\r"
    results["dataset"]["name"] = "a\nb\x07"
    text = terminal_summary(results)
    assert all(line == line.rstrip() for line in text.splitlines())
    assert all(letter.isprintable() for letter in text.replace("\n", ""))


def test_names_beyond_the_width_keep_both_ends() -> None:
    table = Table("t", ("model", "x"), (Line((Cell("a-very-long-model-name-with-variant-7"), Cell("1"))),))
    name = text_table(table).splitlines()[-1].split()[0]
    assert len(name) == NAME_WIDTH and name.startswith("a-very") and name.endswith("variant-7")


@given(
    st.lists(st.tuples(st.text(st.characters(categories=["L", "N"]), max_size=30), st.booleans()), max_size=8)
)
def test_columns_line_up(names: list[tuple[str, bool]]) -> None:
    ordered = sorted(names, key=lambda pair: pair[1])
    lines = tuple(Line((Cell(name), Cell("1.000")), reference) for name, reference in ordered)
    drawn = text_table(Table("t", ("model", "slowdown"), lines)).splitlines()[1:]
    assert len({len(line) for line in drawn}) == 1
    assert sum(set(line) == {"-"} for line in drawn) == 1 + (len({reference for _, reference in names}) == 2)


def test_the_answer_compares_paired(results: dict[str, Any]) -> None:
    assert "less time than the heuristic's" in " ".join(terminal_summary(results).split())
    for row in results["choice_rows"]:
        row["paired_vs_heuristic"] = [-0.02, 0.001, 0.02]
    assert "cannot be told apart (+0.1 % time" in " ".join(terminal_summary(results).split())


def test_the_answer_says_where_the_heuristic_covers_less(results: dict[str, Any]) -> None:
    for row in results["choice_rows"]:
        if row["model"] == "cudnn-heuristic":
            row["n"] = 17
    text = " ".join(terminal_summary(results).split())
    assert "on the 17 of 1,060 problems that have one" in text
    assert "cudnn-heuristic on 17" in text


@pytest.mark.parametrize("kind", ["choice_rows", "time_rows"])
def test_nothing_of_one_kind(results: dict[str, Any], kind: str) -> None:
    results[kind] = []
    assert "booster" in terminal_summary(results)


def test_nothing_at_all() -> None:
    text = terminal_summary({"schema": 1, "time_rows": [], "choice_rows": []})
    assert text == "No model could be judged on this data; the reasons are listed."
