"""Every experiment on a few measured shapes: table, figure and exact repetition."""

import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest

from experiments import catalogue
from experiments.experiment import Effort, one_thread
from experiments.sources import Sources
from tests.known import known_answers

_KNOWN = known_answers(__file__)
COLUMNS = _KNOWN["columns"]
"""Experiment → required columns of its table."""
LONG = _KNOWN["long"]
"""Experiments that take more than three seconds."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in COLUMNS])
def test_an_experiment_runs_and_repeats_exactly(name: str, sources: Sources, effort: Effort) -> None:
    """The result is a table with its columns, and a figure."""
    experiment = catalogue.experiment(name)
    assert experiment.missing(sources) is None
    with one_thread():
        found, again = (experiment.run(sources, effort) for _ in range(2))
    pd.testing.assert_frame_equal(found.table, again.table, check_exact=True)
    assert found.figure == again.figure
    assert set(COLUMNS[name].split()) <= set(found.table.columns)
    assert len(found.table)
    for title, column in found.table.items():
        if column.dtype == object:  # numbers of type object would not be rounded to six digits
            assert all(isinstance(value, str) for value in column.dropna()), title
    assert found.figure is not None and ElementTree.fromstring(found.figure).tag.endswith("svg")


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_experiments_are_registered_and_name_what_is_missing_in_one_line(name: str, tmp_path) -> None:
    experiment = catalogue.experiment(name)
    assert experiment.name == name and experiment.question.endswith("?")
    line = experiment.missing(Sources(tmp_path))
    if not experiment.needs:  # the experiment uses only shipped files
        assert line is None
        return
    assert line is not None and line.startswith(f"{name}: skipped") and "\n" not in line
