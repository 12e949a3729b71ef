"""A GPU that was never measured: its factor is measured in training, told by the card, and used wherever it matters."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from surrogate.bundle.bundle import Bundle, load, save
from surrogate.bundle.training import train
from surrogate.dataset.normalise import normalise
from surrogate.dataset.rows import rows_of
from surrogate.dataset.store import Dataset
from surrogate.models.blend import Blend
from surrogate.models.boosted import BoostedTerms
from surrogate.models.roofline import Roofline
from surrogate.prediction.predictor import Predictor
from surrogate.uncertainty.conformal import ALL, UNSEEN_GPU_FACTOR, Widths
from surrogate.uncertainty.unseen_gpu import unseen_gpu_factor

Table = Callable[..., pd.DataFrame]
GPUS = ("Tesla T4", "TITAN Xp", "TITAN V")


@pytest.fixture(scope="module")
def bundle(table: Table) -> Bundle:
    return train(Dataset(table(16, gpus=GPUS, noise=0.05)), model="linear-terms")


def test_a_known_error_gives_a_known_factor(table: Table) -> None:
    """The roofline, which learns nothing, is off by 2 on all rows of two GPUs and by 3 on those of the third."""
    frame = normalise(table(16, gpus=GPUS), "test")
    rows = rows_of(frame)
    off = np.where(frame["gpu"] == "TITAN V", 3.0, 2.0)
    rows = rows_of(frame.assign(time_us=np.where(rows.ok, off * Roofline().predict_us(rows), np.nan)))
    assert unseen_gpu_factor(rows, Widths({ALL: 0.1}), Roofline()) == pytest.approx(
        np.log(3.0) / 0.1, rel=1e-4
    )
    assert unseen_gpu_factor(rows, Widths({ALL: 100.0}), Roofline()) == 1.0  # it never narrows


def test_a_blend_is_judged_by_its_trees(table: Table) -> None:
    rows = rows_of(normalise(table(6, gpus=GPUS), "test"))
    settings = {"rounds": 5, "max_depth": 3}
    blend = Blend(**{f"trees.{key}": value for key, value in settings.items()})
    widths = Widths({ALL: 0.01})
    assert unseen_gpu_factor(rows, widths, blend) == unseen_gpu_factor(rows, widths, BoostedTerms(**settings))


def test_training_tells_the_card(bundle: Bundle) -> None:
    assert bundle.card["unseen_gpu_factor"] >= 1.0


def test_two_gpus_say_nothing_of_a_third(table: Table) -> None:
    two = train(Dataset(table(16, gpus=GPUS[:2])), model="linear-terms")
    assert "unseen_gpu_factor" not in two.card and two.unseen_gpu_factor == UNSEEN_GPU_FACTOR


def test_the_factor_survives_the_disk_and_widens_tables_as_it_widens_single_answers(
    table: Table, bundle: Bundle, tmp_path
) -> None:
    """`Bundle.predict` and `Predictor` state one interval on a GPU of no row, the factor times that of factor 1."""
    card = {**bundle.card, "unseen_gpu_factor": 2.5}
    save(replace(bundle, card=card), tmp_path / "b")
    found = load(tmp_path / "b")
    frame = table(4, gpus=("RTX 3080",)).drop(columns=["status", "time_us"])
    wide = found.predict(frame)
    narrow = replace(found, card={**card, "unseen_gpu_factor": 1.0}).predict(frame)
    log = [np.log(part["upper_us"].to_numpy() / part["predicted_us"].to_numpy()) for part in (wide, narrow)]
    np.testing.assert_allclose(log[0], 2.5 * log[1])
    served = Predictor(found, gpu="rtx 3080").predict(frame)
    np.testing.assert_allclose(served["upper_us"], wide["upper_us"], rtol=1e-4)


def test_measured_gpus_keep_their_widths(table: Table, bundle: Bundle) -> None:
    frame = table(4, gpus=("t4",)).drop(columns=["status", "time_us"])
    other = replace(bundle, card={**bundle.card, "unseen_gpu_factor": 50.0})
    np.testing.assert_array_equal(other.predict(frame)["upper_us"], bundle.predict(frame)["upper_us"])
