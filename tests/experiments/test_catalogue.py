"""The results table of the experiments: a run replaces its own rows and keeps the rest of the page."""

import re

from experiments.catalogue import BEGIN, END, NAMES, table_row, update_readme, updated
from experiments.experiment import HOME

PAGE = f"# Title\n\n{BEGIN}\n{END}\n\nAfter.\n"


def row(name: str, answer: str = "1 %.", figure: bool = True) -> dict[str, str]:
    """Return a row with the given answer."""
    return {name: table_row(name, f"python -m experiments.{name} --quick", 41.7, figure, answer)}


def lines(text: str) -> list[str]:
    """Return the rows of the table."""
    return [line for line in text.splitlines() if "(tables/" in line]


def test_rows_have_the_order_of_the_catalogue() -> None:
    """The order does not depend on which run ended first."""
    text = updated(PAGE, row("picker") | row("test_set_i"))
    first, second = lines(text)
    assert "test_set_i.csv" in first
    assert "picker.csv" in second
    assert text.startswith("# Title\n\n")
    assert text.endswith(f"{END}\n\nAfter.\n")


def test_lines_outside_the_markers_are_kept() -> None:
    """Other tables of the page link to the same files."""
    other_row = "| a claim | [picker.csv](tables/picker.csv) |"
    text = updated(f"{PAGE}{other_row}\n", row("ablation"))
    assert lines(text) == [*row("ablation").values(), other_row]


def test_a_run_replaces_only_its_own_row() -> None:
    """A second update with the same rows changes nothing."""
    text = updated(PAGE, row("picker", "old") | row("ablation", "kept"))
    again = updated(text, row("picker", "new"))
    assert "| new |" in lines(again)[0]
    assert "| kept |" in lines(again)[1]
    assert updated(again, row("picker", "new")) == again


def test_a_missing_page_is_created_and_a_page_without_new_rows_is_kept(tmp_path) -> None:
    update_readme(tmp_path / "README.md", row(NAMES[0]))
    assert lines((tmp_path / "README.md").read_text(encoding="utf-8")) == list(row(NAMES[0]).values())
    page = tmp_path / "other.md"
    page.write_text("as it was")
    update_readme(page, {})
    assert page.read_text() == "as it was"


def test_the_experiments_page_lists_every_experiment() -> None:
    """Experiments that need a clock or traces may be missing; linked files exist."""
    text = (HOME / "README.md").read_text(encoding="utf-8")
    rows = lines(text[text.index(BEGIN) : text.index(END)])
    listed = [name for name in NAMES if any(f"(tables/{name}.csv)" in line for line in rows)]
    assert len(rows) == len(listed)
    assert set(NAMES) - set(listed) <= {"speed", "iteration_time", "what_if"}
    for link in re.findall(r"\]\(((?:tables|figures)/[^)]+)\)", text):
        assert (HOME / link).is_file(), link
