"""`Configurations`: measured times are reproduced, other times follow from other problems and GPUs."""

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.store import as_dataset
from surrogate.models.configurations import Configurations, Level
from tests.tuning.made_up import COLUMNS, SHAPES, times


def rows(frame: pd.DataFrame) -> Rows:
    data = as_dataset(frame, COLUMNS)
    return rows_of(data.frame, data.described_family)


def test_gpu_at_half_the_speed_gets_the_same_picks() -> None:
    """All times of the second GPU are doubled, so the first GPU's picks are right."""
    first = times(gpus=("our own gpu",))
    second = first.assign(gpu="twice as slow", time_us=2 * first["time_us"])
    model = Configurations().fit(rows(first))
    holdout = rows(second)
    predicted = model.predict(holdout)
    problems = np.unique(holdout.problem)
    assert len(problems) == len(SHAPES)
    for problem in problems:
        part = np.flatnonzero((holdout.problem == problem) & holdout.ok)
        picked = part[predicted[part].argmin()]
        assert holdout.time_us[picked] <= 1.05 * holdout.time_us[part].min()


def test_measured_times_and_failures_are_reproduced() -> None:
    table = rows(times(gpus=("our own gpu",)))
    model = Configurations().fit(table)
    assert model.predict(table)[table.ok] == pytest.approx(table.time_us[table.ok], rel=1e-5)
    assert model.answers_of(table)[1].tolist() == (~table.ok).astype(float).tolist()


def test_model_survives_writing_and_reading() -> None:
    table = rows(times(((64, 128), (256, 512), (1024, 2048))))
    query = rows(times(((1024, 512),)))
    model = Configurations().fit(table)
    loaded = Configurations.from_files({}, model.to_files())
    assert loaded.predict(query).tolist() == model.predict(query).tolist()


def test_level_extrapolates_linearly_in_the_sizes() -> None:
    """The times 2^x µs at x = 0 … 4 extrapolate to 32 µs at 5."""
    x = np.arange(5.0)[:, None]
    level = Level.fit(x, np.array([0.01]), np.log(2.0) * x[:, 0], linear=1)
    assert level.at(np.array([5.0])) == pytest.approx(np.log(32), rel=0.02)


def test_built_in_kernels_are_refused(refused, table) -> None:
    with refused("boosted-terms"):
        Configurations().fit(table(1))
