"""Every experiment on invented sources: it runs, answers in numbers of its own table, and repeats bit for bit."""

import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest

from experiments import catalogue
from experiments.experiment import Effort, one_thread
from experiments.sources import Sources

COLUMNS = {
    "test_set_i": "data population algorithm model split median_error_pct rmspe_pct",
    "test_set_ii": "network model problems slowdown_geomean total_error_pct",
    "picker": "model problems wrong_seer_pct wrong_pct slowdown_macro ci_low ci_high",
    "same_rows": "data model n median_error_pct error_low_pct slowdown_macro ci_low",
    "learning_curve": "data share training_shapes model median_error_pct slowdown_macro",
    "leave_one_gpu_out": "gpu model slowdown_macro median_error_pct",
    "calibration": "data gpu measured chosen median_error_pct p90_error_pct",
    "miopen": "gpu candidate split model slowdown_macro median_error_pct",
    "small_to_large": "data training flops_over model median_error_pct",
    "versions": "kind older newer algorithm model ratio_median best_changed_pct",
    "ablation": "data variant median_error_pct error_change_pct slowdown_change_high",
    "whole_networks": "set training gpu predictor n mean_error_pct median_error_pct bias_pct coverage_pct",
    "operators": "library operator gpu model n median_error_pct p90_error_pct default_same_rows_pct",
    "coverage": "data kind of rows shapes coverage half_width",
}
"""Experiment → columns that its table has among others."""


LONG = {
    "whole_networks", "ablation", "miopen", "learning_curve", "calibration", "small_to_large", "same_rows", "operators",
    "coverage",
}  # fmt: skip
"""Those that take over three seconds."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in COLUMNS])
def test_it_runs(name: str, sources: Sources, effort: Effort) -> None:
    """A table with its columns, a figure, a sentence with numbers."""
    experiment = catalogue.experiment(name)
    assert experiment.missing(sources) is None
    with one_thread():
        found = experiment.run(sources, effort)
    assert set(COLUMNS[name].split()) <= set(found.table.columns)
    assert len(found.table)
    for title, column in found.table.items():
        if column.dtype == object:  # numbers there would escape the six digits
            assert all(isinstance(value, str) for value in column.dropna()), title
    assert found.figure is not None and ElementTree.fromstring(found.figure).tag.endswith("svg")
    assert any(letter.isdigit() for letter in found.answer) and "nan" not in found.answer.lower()


@pytest.mark.parametrize(
    "name", [name if name == "versions" else pytest.param(name, marks=pytest.mark.slow) for name in COLUMNS]
)
def test_it_repeats_bit_for_bit(name: str, sources: Sources, effort: Effort) -> None:
    with one_thread():
        first, second = (catalogue.experiment(name).run(sources, effort) for _ in range(2))
    pd.testing.assert_frame_equal(first.table, second.table, check_exact=True)
    assert (first.figure, first.answer) == (second.figure, second.answer)


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_experiments_are_registered_and_name_what_is_missing_in_one_line(name: str, tmp_path) -> None:
    experiment = catalogue.experiment(name)
    assert experiment.name == name and experiment.question.endswith("?")
    line = experiment.missing(Sources(tmp_path))
    if not experiment.needs:  # what ships is enough
        assert line is None
        return
    assert line is not None and line.startswith(f"{name}: skipped") and "\n" not in line
