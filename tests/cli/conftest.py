"""A small dataset for the commands, and a bundle fitted on it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from surrogate.bundle.bundle import save
from surrogate.bundle.train import train
from surrogate.dataset.store import Dataset, write_dataset


@pytest.fixture(scope="session")
def table() -> pd.DataFrame:
    """A small, plainly synthetic dataset: times from a made-up formula, three GEMM algorithms and Winograd."""
    rows = []
    random = np.random.default_rng(0)
    speed = {"IMPLICIT_GEMM": 1.0, "IMPLICIT_PRECOMP_GEMM": 0.7, "GEMM": 1.3, "WINOGRAD": 0.5}
    for gpu in ("Tesla V100-SXM2-16GB", "Tesla T4"):
        for c in (16, 32, 64, 128):
            for r in (1, 3):
                for h in (14, 28):
                    for n in (1, 8):
                        for name, factor in speed.items():
                            ok = name != "WINOGRAD" or r == 3
                            time_us = 5 + factor * n * c * c * r * r * h * h / 2e5 * (1 if c > 32 else 1.6 / factor)
                            rows.append(
                                {
                                    "gpu": gpu, "library": "cudnn", "library_version": "7.6.3", "direction": "fwd",
                                    "dtype": "fp32", "math": "fma", "layout": "NCHW", "n": n, "c": c, "h": h, "w": h,
                                    "k": c, "r": r, "s": r, "pad_h": r // 2, "pad_w": r // 2, "stride_h": 1,
                                    "stride_w": 1, "dilation_h": 1, "dilation_w": 1, "groups": 1, "algorithm": name,
                                    "status": "ok" if ok else "not_supported",
                                    "time_us": time_us * random.uniform(0.97, 1.03) if ok else np.nan,
                                    "heuristic_algorithm": "IMPLICIT_GEMM", "networks": "net-a" if c < 64 else "net-b",
                                }
                            )  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture
def dataset(table: pd.DataFrame, tmp_path: Path) -> Path:
    """`table` as a file."""
    path = tmp_path / "small data é.parquet"
    write_dataset(table, path)
    return path


@pytest.fixture(scope="session")
def trained(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear bundle fitted on `table`, shared: read it, do not change it."""
    path = tmp_path_factory.mktemp("trained") / "bundle"
    save(train(Dataset(table), model="linear-terms"), path)
    return path
