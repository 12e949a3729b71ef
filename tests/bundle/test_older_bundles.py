"""Tests that bundles written by version 0.3.0 give the times and intervals that 0.3.0 gave.

Lower ends may be higher than those of 0.3.0, which passed the rooflines. Intervals of calibrated GPUs may be wider,
because they now grow with the distance from the sample.

Each archive holds a bundle of one model, which `seer train` or `seer calibrate` of 0.3.0 wrote, and ``answers.csv``:
problems with the columns that its `Predictor.predict` added. The tables were small parts of the project's own
measurements, except the counters of ``seer-paper``, which were generated.
"""

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from surrogate.bundle.bundle import load, save
from surrogate.models.registry import DECLARED
from surrogate.prediction.predictor import Predictor

ARCHIVES = sorted((Path(__file__).parent / "version_0_3_0").glob("*.zip"))
ANSWERS = ["predicted_us", "lower_us", "upper_us"]
NEWER = {"boosted-seer", "distilled-terms", "stacked-terms", "unit-times"}
"""Models that 0.3.0 did not have."""


def test_every_model_of_version_0_3_0_has_an_archive() -> None:
    assert {name for name, model in DECLARED.items() if model.storable} - NEWER <= {path.stem for path in ARCHIVES}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_an_older_bundle_gives_its_original_answers(archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive) as files:
        files.extractall(tmp_path / "b")
    table = pd.read_csv(tmp_path / "b" / "answers.csv")
    bundle = load(tmp_path / "b")
    problems = table.drop(columns=ANSWERS)
    answers = Predictor(bundle).predict(problems).to_frame()[ANSWERS]
    assert len(table) > 50
    np.testing.assert_allclose(answers["predicted_us"], table["predicted_us"], rtol=1e-6)  # BLAS libraries differ
    is_wider = answers["upper_us"] > table["upper_us"] * (1 + 1e-6)
    assert not is_wider.any() or "calibrated" in archive.stem
    np.testing.assert_allclose(answers["upper_us"][~is_wider], table["upper_us"][~is_wider], rtol=1e-6)
    assert (answers["lower_us"] >= table["lower_us"] * (1 - 1e-6))[~is_wider].all()
    assert (answers["lower_us"] <= answers["predicted_us"]).all()
    save(bundle, tmp_path / "again")
    again = Predictor(load(tmp_path / "again")).predict(problems).to_frame()[ANSWERS]
    np.testing.assert_allclose(again, answers, rtol=1e-12)
