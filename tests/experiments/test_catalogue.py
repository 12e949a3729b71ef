"""Recorded runs and functions of the pages: one row per figure, missing values, and tables of a partial run."""

from pathlib import Path

import pandas as pd
import pytest

from experiments.catalogue import NAMES, RUN_TIMES, record_times
from experiments.experiment import HOME
from experiments.pages import NAMES as PAGES, TEMPLATES, Tables, cell, shown
from surrogate.features.errors import InputError
from tests.known import cases


def test_a_run_replaces_only_its_own_row(tmp_path: Path) -> None:
    path = tmp_path / "run_times.csv"
    record_times(path, {"picker": ("python -m experiments.picker", 41.7)})
    before, after = (pd.read_csv(each).set_index("experiment") for each in (RUN_TIMES, path))
    assert after.loc["picker"].tolist() == ["python -m experiments.picker", 42]
    pd.testing.assert_frame_equal(before.drop(index="picker"), after.drop(index="picker"))


def test_every_experiment_is_in_the_index_and_on_a_page() -> None:
    """Its table and its recorded run are there, and a page shows each figure."""
    index = (HOME / "README.md").read_text(encoding="utf-8")
    templates = {name: (TEMPLATES / f"{name}.md.j2").read_text(encoding="utf-8") for name in PAGES}
    for name in NAMES:
        assert f"| `{name}` |" in index, name
        assert (HOME / "tables" / f"{name}.csv").is_file(), name
        assert any(f'took("{name}")' in text for text in templates.values()), name
    for path in (HOME / "figures").glob("*.svg"):
        assert any(f"(figures/{path.name})" in text for text in templates.values()), path.name


@cases(__file__)
def test_cells_show_missing_values_and_signs(text: str, expected: str) -> None:
    row = {"a": 1.234, "low": -2, "high": 3, "share": 0.91, "none": float("nan"), "by": {"x": 5}, "big": 12345.6}
    assert cell(text, row | {"never": float("inf")}) == expected


def test_a_figure_needs_exactly_one_row_and_a_known_column() -> None:
    tables = Tables()
    with pytest.raises(InputError, match="4 rows"):
        tables.value("training_mpt", "by == 'sizes'", "{n}")
    with pytest.raises(InputError, match="no column m"):
        tables.value("training_mpt", "group == 'sizes fitted, 8 GPUs'", "{m}")
    assert tables.value("training_mpt", "by == 'sizes'", "{n}", largest="n") == "54"


def test_a_partial_run_prints_the_rows_that_it_has(tmp_path: Path) -> None:
    """The printed tables are those of the pages, with the figures of the run."""
    (tmp_path / "tables").mkdir()
    table = pd.read_csv(HOME / "tables" / "training_mpt.csv")
    table[table["group"] == "sizes fitted, 8 GPUs"].assign(n=99).to_csv(tmp_path / "tables" / "training_mpt.csv")
    lines = shown("training_mpt", tmp_path).splitlines()
    assert len(lines) == 3 and lines[2].startswith("| sizes fitted, 8 GPUs | 99 | 2.5 |")
