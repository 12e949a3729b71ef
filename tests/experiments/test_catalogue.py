"""The results table: rows replaced by their own runs, the others kept, the text around untouched."""

import re

from experiments.catalogue import BEGIN, END, NAMES, table_row, update_readme, updated
from experiments.experiment import HOME

PAGE = f"# Title\n\n{BEGIN}\n{END}\n\nAfter.\n"


def row(name: str, answer: str = "1 %.", figure: bool = True) -> dict[str, str]:
    """A row with the given answer."""
    return {name: table_row(name, f"python -m experiments.{name} --quick", 41.7, figure, answer)}


def lines(text: str) -> list[str]:
    """The table's body."""
    return [line for line in text.splitlines() if "(tables/" in line]


def test_rows_stand_in_the_catalogue_s_order() -> None:
    """Whatever the order in which runs ended."""
    text = updated(PAGE, row("picker") | row("test_set_i"))
    first, second = lines(text)
    assert "test_set_i.csv" in first
    assert "picker.csv" in second
    assert text.startswith("# Title\n\n")
    assert text.endswith(f"{END}\n\nAfter.\n")


def test_lines_outside_the_markers_are_no_rows() -> None:
    """Other tables of the page link to the same files."""
    other_row = "| a claim | [picker.csv](tables/picker.csv) |"
    text = updated(f"{PAGE}{other_row}\n", row("versions"))
    assert lines(text) == [*row("versions").values(), other_row]


def test_a_run_replaces_its_own_row_alone() -> None:
    """The other row keeps what its last run said; a second update with the same rows changes nothing."""
    text = updated(PAGE, row("picker", "old") | row("versions", "kept"))
    again = updated(text, row("picker", "new"))
    assert "| new |" in lines(again)[0]
    assert "| kept |" in lines(again)[1]
    assert updated(again, row("picker", "new")) == again


def test_a_page_is_made_where_there_is_none_and_left_alone_without_rows(tmp_path) -> None:
    update_readme(tmp_path / "README.md", row(NAMES[0]))
    assert lines((tmp_path / "README.md").read_text(encoding="utf-8")) == list(row(NAMES[0]).values())
    page = tmp_path / "other.md"
    page.write_text("as it was")
    update_readme(page, {})
    assert page.read_text() == "as it was"


def test_the_project_s_page_lists_every_experiment() -> None:
    """A row for each name but those of clocks and traces, run apart; links lead to files that are there."""
    text = (HOME / "README.md").read_text(encoding="utf-8")
    rows = lines(text[text.index(BEGIN) : text.index(END)])
    listed = [name for name in NAMES if any(f"(tables/{name}.csv)" in line for line in rows)]
    assert len(rows) == len(listed)
    assert set(NAMES) - set(listed) <= {"speed", "iteration_time", "replay_error", "what_if"}
    for link in re.findall(r"\]\(((?:tables|figures)/[^)]+)\)", text):
        assert (HOME / link).is_file(), link
