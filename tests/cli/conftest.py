"""A small dataset for the commands, and a bundle fitted on it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from surrogate.bundle.bundle import save
from surrogate.bundle.train import train
from surrogate.dataset.store import Dataset, write_dataset
from tests.tables import every


@pytest.fixture(scope="session")
def table() -> pd.DataFrame:
    """Return a small dataset of made-up times of three GEMM algorithms and Winograd."""
    speed = {"IMPLICIT_GEMM": 1.0, "IMPLICIT_PRECOMP_GEMM": 0.7, "GEMM": 1.3, "WINOGRAD": 0.5}
    gpus, channels = ("Tesla V100-SXM2-16GB", "Tesla T4"), (16, 32, 64, 128)
    rows = every(gpu=gpus, c=channels, r=(1, 3), h=(14, 28), n=(1, 8), algorithm=speed)
    c, r, factor = rows["c"], rows["r"], rows["algorithm"].map(speed)
    ok = (rows["algorithm"] != "WINOGRAD") | (r == 3)
    time_us = 5 + factor * rows["n"] * c**2 * r**2 * rows["h"] ** 2 / 2e5 * np.where(c > 32, 1, 1.6 / factor)
    rows["time_us"] = time_us.where(ok) * np.random.default_rng(0).uniform(0.97, 1.03, len(rows))
    steps = dict.fromkeys(("stride_h", "stride_w", "dilation_h", "dilation_w", "groups"), 1)
    rows = rows.assign(w=rows["h"], k=c, s=r, pad_h=r // 2, pad_w=r // 2, **steps, heuristic_algorithm="IMPLICIT_GEMM")
    rows = rows.assign(status=np.where(ok, "ok", "not_supported"), networks=np.where(c < 64, "net-a", "net-b"))
    setting = {"direction": "fwd", "dtype": "fp32", "math": "fma", "layout": "NCHW"}
    return rows.assign(library="cudnn", library_version="7.6.3", **setting)


@pytest.fixture
def dataset(table: pd.DataFrame, tmp_path: Path) -> Path:
    """Write `table` to a file and return its path."""
    path = tmp_path / "small data é.parquet"
    write_dataset(table, path)
    return path


@pytest.fixture(scope="session")
def trained(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a linear bundle fitted on `table`; tests share it and must not change it."""
    path = tmp_path_factory.mktemp("trained") / "bundle"
    save(train(Dataset(table), model="linear-terms"), path)
    return path
