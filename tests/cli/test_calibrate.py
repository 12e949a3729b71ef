"""``seer calibrate`` through the entry point."""

import numpy as np
import pandas as pd
import pytest

NEW = "TITAN Xp"


@pytest.fixture
def measured(table, tmp_path):
    """The T4's table, twice as slow, as another GPU's."""
    path = tmp_path / "new gpu é.parquet"
    own = table[table["gpu"] == "Tesla T4"]
    own.assign(gpu=NEW, time_us=own["time_us"] * 2).to_parquet(path)
    return path


def test_calibrating_adapts_the_bundle(seer, trained, measured, tmp_path):
    out = tmp_path / "calibrated"
    result = seer("calibrate", trained, measured, "-o", out).succeeded()
    assert "32 problems of 16 shapes" in result.out and "before" in result.out
    errors = []
    for one in (trained, out):
        assert seer("predict", "--bundle", one, "--data", measured, "-o", tmp_path / "p.parquet").code == 0
        frame = pd.read_parquet(tmp_path / "p.parquet").dropna(subset=["time_us"])
        errors.append(np.median(np.abs(frame["predicted_us"] / frame["time_us"] - 1)))
    assert errors[1] < 0.5 * errors[0]
    card = seer("info", out, "--json").json["card"]["calibration"]
    assert [row["problems"] for row in card.values()] == [32]
