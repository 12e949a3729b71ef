"""Tests of the table writer: text for pipes and terminals, CSV, JSON, HTML, and the format of numbers."""

import json
import math
from typing import Any

import numpy as np
from hypothesis import given, strategies as st

from surrogate.report import tables
from surrogate.report.tables import Cell, FactTable, Table, to_csv, to_json, wrapped
from tests.known import cases

NAME = "void cudnn::detail::implicit_convolve_sgemm<float, {}>"
BOUND = "latency-bound"
RECORDS = [{"kernel": NAME.format(i), "total_us": 12345.6 * i, "calls": i, "bound": BOUND} for i in (1, 2, 3)]
WORDS = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=60)


@cases(__file__)
def test_numbers_are_formatted(form, values, texts) -> None:
    """Intervals are lists; a column may hold numbers of NumPy."""
    assert list(map(getattr(tables, form), values)) == texts
    assert tables.format_value(np.float32(0.5)) == "0.5"


def test_numbers_and_intervals_are_right_aligned_and_other_cells_left_aligned() -> None:
    records = [
        {"name": "a", "us": 5.0, "90 %": (4.0, 6.0), "n": 1, "ok": True, "who": None},
        {"name": "long", "us": None, "90 %": (5.0, 5.0), "n": 1000, "ok": False, "who": "x"},
    ]
    assert Table(records, {"90 %": tables.interval_us}).text().splitlines() == [
        "name  us  90 %     n  ok   who",
        "a      5   4–6     1  yes  –",
        "long   –     –  1000  no   x",
    ]
    assert Table([]).text() == "(no rows)" and Table([], empty="nothing").text() == "nothing"


def test_a_table_has_title_notes_reference_rows_and_marked_cells() -> None:
    records = [{"model": "a", "x": Cell(1.0, "1.0–1.1", best=True)}, {"model": "oracle", "x": math.nan}]
    table = Table(records, {"x": tables.ratio}, "T", note="8 rows", notes=["told"], references=1)
    lines = ["T (8 rows)", "model       x", "a       1.000", "-------------", "oracle      –", "told"]
    assert table.text().splitlines() == lines
    page = table.__html__()
    assert '<td class="best">1.000<small>1.0–1.1</small></td>' in page and "<p>told</p>" in page
    assert '<tbody class="references"><tr><th scope="row" style="text-align:left">oracle' in page


def test_text_marks_the_best_cell_if_a_mark_is_given() -> None:
    records = [{"part": "a", "x": Cell(1.0, best=True), "y": 2.0}]
    lines = ["part       x  y", "a     1.000*  2", "* best of its row"]
    assert Table(records, {"x": tables.ratio}, best_mark="*").text().splitlines() == lines
    assert "*" not in Table(records, {"x": tables.ratio}).text()


def test_a_pipe_gets_full_names_and_a_terminal_gets_shortened_ones() -> None:
    assert RECORDS[0]["kernel"] in Table(RECORDS).text()
    lines = Table(RECORDS).text(60).splitlines()
    assert lines[0].split() == ["kernel", "total_us", "calls", "bound"]
    assert all(len(line) <= 60 for line in lines)
    assert lines[1].startswith("void cudnn")
    assert "…" in lines[1] and "12346" in lines[1]
    assert lines[3].split("  ")[0].endswith("3>")


def test_columns_that_do_not_fit_continue_below_the_first_ones() -> None:
    records = [{"name": "a", **{f"figure_{i}": i * 1.5 for i in range(10)}}]
    parts = Table(records).text(40).split("\n\n")
    assert len(parts) > 1 and all(part.startswith("name") for part in parts)
    assert sum(part.split("\n")[0].count("figure_") for part in parts) == 10


def test_the_last_columns_are_left_out_and_a_note_names_them() -> None:
    table = Table([{"name": "a" * 30, "kept": 1.5, "first": "b" * 20, "second": 10**20}], widest=70)
    assert table.text(100).count("\n") == 1
    assert table.text().splitlines()[-1] == "columns that do not fit: second; --csv and --json have every column"
    assert table.text(40).splitlines()[0].split() == ["name", "kept"] and "first, second;" in table.text(40)


@given(
    st.lists(st.fixed_dictionaries({"key": WORDS, "text": WORDS, "n": st.integers(0, 10**9)}), min_size=1),
    st.integers(50, 120),
)
def test_every_line_fits_and_no_row_is_lost(records: list[dict[str, Any]], width: int) -> None:
    lines = Table(records).text(width).split("\n")
    assert max(map(len, lines)) <= width
    assert len(lines) == len(records) + 1
    assert all(str(record["n"]) in "\n".join(lines) for record in records)


def test_long_sentences_are_wrapped_at_words() -> None:
    note = "excluded FFT: needs 94371840 bytes of workspace (90.0 MiB), the limit is 16777216 bytes"
    expected = note.replace("(90.0 MiB), ", "(90.0 MiB),\n  ")
    assert wrapped(note, 60) == expected
    assert Table([{"a": 1}], notes=[note]).text(60).endswith(f"\n{expected}")
    assert wrapped(note, None) == note


def test_control_characters_are_escaped() -> None:
    text = Table([{"a": "\x1b[31mred\r", "模": 1}], title="\x07").text() + FactTable([("a", "\x1b")]).text(80)
    assert text.replace("\n", "").isprintable() and "\\x1b[31mred\\r" in text and "模" in text


def test_csv_and_json_keep_values() -> None:
    records = [{"a": "x,y", "b": None, "c": [1, "é"]}, {"a": 'say "hi"', "b": math.nan, "d": True, "c": {"k": 1}}]
    assert to_csv(records, ["d"]).splitlines() == ["d,a,b,c", ',"x,y",,"[1, ""é""]"', 'True,"say ""hi""",,"{""k"": 1}"']
    assert to_csv([], ["a", "b"]) == "a,b\n"
    assert json.loads(to_json({"a": 1, "b": RECORDS})) == {"a": 1, "b": RECORDS}


def test_html_escapes_everything_and_cuts_very_long_names() -> None:
    name = "void kernel<float>(" + "int, " * 40 + ")"
    records = [{"<kernel>": name, "bound": "<b>", "why": "&" * 50, "us": 1.5}]
    page = Table(records, title="<t>", note="<n>", notes=["<p>"]).__html__()
    assert not any(f"<{tag}>" in page.replace("<p>&lt;p&gt;</p>", "") for tag in ("kernel", "t", "n", "p"))
    assert page.count("float") == 2 and "…" in page  # cut, with the full name as the title
    assert '<td style="text-align:left">&lt;b&gt;</td>' in page and "<td>1.5</td>" in page
    assert '<td class="text" style="text-align:left">&amp;' in page
    assert "<dt>&lt;</dt><dd>&amp;</dd>" in FactTable([("<", "&")]).__html__()
