"""``seer calibrate`` through the entry point."""

import numpy as np
import pandas as pd
import pytest

NEW = "TITAN Xp"


@pytest.fixture
def measured(table, tmp_path):
    """Write the rows of the T4 as those of another GPU that is twice as slow."""
    path = tmp_path / "new gpu é.parquet"
    t4 = table[table["gpu"] == "Tesla T4"]
    t4.assign(gpu=NEW, time_us=t4["time_us"] * 2).to_parquet(path)
    return path


def test_calibrating_adapts_the_bundle(seer, trained, measured, tmp_path):
    out = tmp_path / "calibrated"
    result = seer("calibrate", trained, measured, "-o", out).succeeded()
    assert "32 problems of 16 shapes" in result.out and "before" in result.out
    errors = []
    for bundle in (trained, out):
        assert seer("predict", "--bundle", bundle, "--data", measured, "-o", tmp_path / "p.parquet").code == 0
        frame = pd.read_parquet(tmp_path / "p.parquet").dropna(subset=["time_us"])
        errors.append(np.median(np.abs(frame["predicted_us"] / frame["time_us"] - 1)))
    assert errors[1] < 0.5 * errors[0]
    card = seer("info", out, "--json").json["card"]["calibration"]
    assert [row["problems"] for row in card.values()] == [32]
