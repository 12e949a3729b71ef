"""Tests of `write_report`: the folder and its page."""

import json
import math
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from surrogate.report.comparison import report_page, write_report
from surrogate.report.figures import draw
from surrogate.report.page import Figure, Section, page
from tests.known import cases
from tests.report.conftest import HtmlPage, write_folder

FIGURES = {"slowdowns.svg", "gpus.svg", "predicted.svg"}


def _page(path: Path) -> HtmlPage:
    return HtmlPage(path.read_text(encoding="utf-8"))


def test_the_folder_is_complete_and_the_page_loads_no_other_file(written: Path) -> None:
    expected = {"results.json", "predictions.parquet", "choices.parquet", "report.html", "figures"}
    assert {path.name for path in written.iterdir()} == expected | {"time_rows.csv", "choice_rows.csv"}
    assert {path.name for path in (written / "figures").iterdir()} == FIGURES
    page = _page(written / "report.html")
    assert "script" not in page.tags and "img" not in page.tags
    assert all(link.startswith(("#", "data:")) for link in page.links)
    text = (written / "report.html").read_text(encoding="utf-8")
    assert "@import" not in text and not re.search(r"url\((?!#)", text)


def test_ids_are_unique_and_links_have_a_target(written: Path) -> None:
    page = _page(written / "report.html")
    assert len(page.ids) == len(set(page.ids))
    text = (written / "report.html").read_text(encoding="utf-8")
    targets = {link[1:] for link in page.links if link.startswith("#")}
    assert targets.union(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)


def test_figures_take_the_page_colours(written: Path) -> None:
    text = (written / "report.html").read_text(encoding="utf-8")
    body = text[text.index("<body>") :]
    assert "var(--ink)" in body and "#1c1d1f" not in body
    assert "#1c1d1f" in (written / "figures" / "gpus.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_equal_input_gives_equal_bytes(written: Path, tmp_path: Path, results: dict[str, Any]) -> None:
    """The user's matplotlib settings do not matter; files have no dates and no program names."""
    folder = write_folder(tmp_path, results)
    with mpl.rc_context({"font.size": 20, "axes.grid": False, "svg.hashsalt": "other"}):
        write_report(folder)
    for name in ("report.html", *(f"figures/{name}" for name in FIGURES)):
        content = (folder / name).read_bytes()
        assert content == (written / name).read_bytes()
        assert b"dc:date" not in content and b"http://matplotlib" not in content


@pytest.mark.slow
def test_a_damaged_file_keeps_the_old_page_and_a_missing_one_drops_its_figures(refused, tmp_path, results) -> None:
    folder = write_folder(tmp_path, results)
    before = write_report(folder).read_bytes()
    (folder / "choices.parquet").write_bytes(b"")
    with refused("is not readable as parquet"):
        write_report(folder)
    assert (folder / "report.html").read_bytes() == before
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")]
    (folder / "predictions.parquet").unlink()
    (folder / "choices.parquet").unlink()
    words = " ".join(_page(write_report(folder)).words)
    assert "predictions.parquet is missing" in words and "choices.parquet is missing" in words
    assert {path.name for path in (folder / "figures").iterdir()} == {"gpus.svg"}  # no stale figure stays


def test_the_page_starts_with_the_answer(results: dict[str, Any]) -> None:
    text = report_page(results, {}, {})
    answer, *details = (
        paragraph.replace("\u00a0", " ") for paragraph in re.findall(r'<p(?: class="answer")?>(.*)</p>', text)
    )
    assert answer.startswith("Yes: on held-out shapes, the picks of stacked-terms take 3.6 % less time than SEER")
    assert details[0].startswith("The picks of stacked-terms take 2.2 % less time than the best linear model")
    assert text.index('class="question">Are boosted trees') < text.index('class="answer"') < text.index("<nav>")
    links = re.findall(r'<a href="#([^"]+)">', text)
    assert links[0] == "the-answer-in-detail"
    assert {"prediction-intervals", "importance-of-the-columns", "costs", "what-could-not-be-evaluated"} <= set(links)


def test_models_without_evaluation_are_only_in_the_last_section(results: dict[str, Any]) -> None:
    text = report_page(results, {}, {})
    start = text.index('<section id="what-could-not-be-evaluated">')
    assert "configurations" not in text[:start]
    assert "<p>Not evaluated: seer-paper (needs kernel metrics &lt;b&gt;" in text[start:]
    assert "is for described kernels, not conv; use boosted-terms" in text[start:]  # the full reason


def test_results_of_schema_1_can_be_drawn(tmp_path: Path, results: dict[str, Any]) -> None:
    """Schema 1 has log ratios as paired differences, and neither a reported model nor references."""
    kept = {key: results[key] for key in ("dataset", "seeds", "folds", "time_rows")}
    choices = [{k: v for k, v in row.items() if "_vs_" not in k} for row in results["choice_rows"]]
    for old, row in zip(choices, results["choice_rows"], strict=True):
        if paired := row.get("paired_vs_heuristic"):
            old["paired_vs_heuristic"] = [math.log1p(end) for end in paired]
    text = json.dumps({"schema": 1, "choice_rows": choices, **kept})
    (tmp_path / "results.json").write_text(text, encoding="utf-8")
    words = " ".join(_page(write_report(tmp_path)).words).replace("\u00a0", " ")
    sentence = "On held-out shapes, the picks of stacked-terms take 5.8 % less time than the picks of cuDNN's heuristic"
    assert f"{sentence} (cudnn-heuristic; 95 % interval 3.9 to 7.7 %)." in words
    assert "−5.8 [−7.7, −3.9]" in words and "vs SEER" not in words.split("What the figures mean")[1]


def check_incomplete(results: dict[str, Any], folder: Path) -> None:
    page = HtmlPage(report_page(results, *draw(results, folder)))
    assert any("What the figures mean" in word for word in page.words)
    assert not any("None" in word or "nan" in word.split() for word in page.words)


@cases(__file__)
def test_a_part_of_the_rows_makes_a_page(tmp_path: Path, results: dict[str, Any], column, values) -> None:
    parts = {kind: [row for row in results[kind] if row.get(column) in values] for kind in ("choice_rows", "time_rows")}
    check_incomplete({**results, **parts}, tmp_path)


def test_results_without_figures_or_provenance_make_a_page(tmp_path: Path, results: dict[str, Any]) -> None:
    check_incomplete({kind: results[kind] for kind in ("schema", "time_rows", "choice_rows")}, tmp_path)
    names = ("model", "split", "stratum", "gpu", "population", "algorithm")
    for row in results["choice_rows"] + results["time_rows"]:
        row |= dict.fromkeys(row.keys() - {*names})
    check_incomplete(results, tmp_path)


def test_a_page_has_its_sections_figures_and_answer() -> None:
    figure = Figure("f", '<?xml?><svg width="1" viewBox="0 0 1 1"><path id="a" fill="#1c1d1f"/></svg>', "C <")
    sections = [Section("A & b", ["<p>"], [figure]), Section("empty", [])]
    text = page("<t>", sections, kicker="k", answer="1 %")
    parsed = HtmlPage(text)
    assert {"a-b", "figure-f", "f-a"} == set(parsed.ids) and "empty" not in parsed.words
    assert '<svg viewBox="0 0 1 1" role="img" aria-label="C &lt;">' in text and "var(--ink)" in text
    assert "<t>" in parsed.words and "1\u00a0%" in parsed.words
    assert "question" not in text.split("</style>")[1]
