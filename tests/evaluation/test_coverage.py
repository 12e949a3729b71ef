"""Coverage per GPU with its interval over shapes, and intervals of a bundle on held-out measured shapes."""

from pathlib import Path

import numpy as np
import pytest

from surrogate.bundle.train import train
from surrogate.dataset.problems import shape_names
from surrogate.dataset.splits import fold_of_names
from surrogate.dataset.store import read_dataset
from surrogate.evaluation.coverage import coverage_rows
from surrogate.features.families import CONV
from surrogate.prediction.evaluate import evaluate
from tests.tables import checked


def test_coverage_is_counted_per_gpu_with_an_interval_over_shapes(table) -> None:
    """Three of the T4's four rows are inside, and all of the TITAN Xp's; one row has no time."""
    frame = table(4, batches=(1,), algorithms=("IMPLICIT_GEMM",))
    error = np.array([0.1, -0.1, 0.5, 0.1, 0.2, 0.2, np.nan, 0.2])
    total, t4, xp = coverage_rows(checked(frame), error, np.array([0.3] * 4 + [0.2] * 4))
    assert (total["gpu"], total["rows"], total["shapes"]) == ("all", 7, 4)
    assert total["coverage"] == pytest.approx(6 / 7)
    assert (t4["gpu"], t4["coverage"], t4["half_width"]) == ("t4", 0.75, pytest.approx(0.3))
    assert t4["coverage_low"] < 0.75 < t4["coverage_high"]
    assert (xp["gpu"], xp["rows"], xp["coverage"], xp["coverage_low"]) == ("titan-xp", 3, 1.0, 1.0)
    assert xp["interval_factor"] == pytest.approx(np.exp(0.2))


@pytest.mark.slow
def test_intervals_cover_90_percent_of_held_out_measured_shapes(measurements: Path) -> None:
    """300 shapes of MI210 train and 300 others are evaluated; the tolerance is the sampling error of 300 shapes."""
    data = read_dataset(measurements / "miopen_conv_mi210.parquet", candidates="listed")
    frame = data.frame.query("direction == 'fwd' and dtype == 'fp32' and layout == 'NCHW'")
    place = fold_of_names(shape_names(frame, CONV), len(frame), seed=3)
    number = np.array([place[name] for name in shape_names(frame, CONV)])
    bundle = train(data.with_frame(frame[number < 300]), params={"rounds": 150, "learning_rate": 0.1})
    evaluated = evaluate(bundle, data.with_frame(frame[(number >= 300) & (number < 600)]))[0]
    assert evaluated["part"] == "unseen" and evaluated["rows"] > 1000
    assert 0.86 < evaluated["interval_coverage"] < 0.94
    assert abs(evaluated["pick_probability"] - evaluated["pick_was_best"]) < 0.08
    card = bundle.card["held_out"]["conv"]["intervals"][0]
    assert abs(card["coverage"] - evaluated["interval_coverage"]) < 0.05
