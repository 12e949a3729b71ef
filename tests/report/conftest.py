"""An invented comparison, in the files of `seer compare`: plausible random numbers, test data only."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.features.problem import SIZE_COLUMNS

MODELS = {"booster": 0.10, "booster-raw": 0.16, "seer-time-only": 0.30, "roofline": 0.80, "nearest": 0.24}
REFERENCES = ("cudnn-heuristic", "always-best-single", "oracle")
GPUS = ("Tesla V100-SXM2-16GB", "Tesla T4", "TITAN Xp", "Tesla K80")
STRATA = ("1x1s1", "1x1s2", "3x3s1", "grouped", "other")
ALGORITHMS = {"IMPLICIT_GEMM": "GEMM", "GEMM": "GEMM", "FFT": "FFT", "FFT_TILING": "FFT", "WINOGRAD": "WINOGRAD"}
SIZES = tuple(name for name in SIZE_COLUMNS if name != "groups")


RESULTS = Path(__file__).with_name("results.json")
"""A results object with every kind of row: judged, and not judged with a reason."""


def invented_results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def invented_frames(problems: int = 300) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Predictions and choices of ``problems`` problems, two seeds, in the columns of the contract."""
    random = np.random.default_rng(21)
    base = pd.DataFrame({name: random.choice([1, 2, 4, 8, 16], problems) for name in SIZES}).assign(groups=1)
    base["gpu"] = random.choice(GPUS, problems)
    base["fold"] = random.integers(0, 10, problems)
    scale = 10 ** random.uniform(0.8, 5.2, problems)
    predictions, choices = [], []
    for name, family in ALGORITHMS.items():
        time = scale * 10 ** random.normal(0.1, 0.25, problems)
        for model, spread in MODELS.items():
            for seed in (0, 1):
                noise = np.exp(random.normal(0, spread * (2 if family == "FFT" else 1), problems))
                status = np.where(random.random(problems) < 0.1, "not_supported", "ok")
                rows = base.assign(model=model, seed=seed, algorithm=name, family=family, status=status)
                measured = np.where(status == "ok", time, np.nan)
                predictions.append(rows.assign(time_us=measured, predicted_us=time * noise))
    for model in (*MODELS, *REFERENCES):
        spread = {**MODELS, "oracle": 0.0, "cudnn-heuristic": 0.3, "always-best-single": 0.6}[model]
        for seed in (0, 1):
            lost = np.where(random.random(problems) < 0.3, random.exponential(0.6 * spread, problems), 0.0)
            rows = base.assign(model=model, seed=seed, stratum=random.choice(STRATA, problems))
            choices.append(rows.assign(slowdown=np.exp(lost), infeasible=False))
    constants = {"direction": "fwd", "dtype": "fp32", "math": "fma", "layout": "NCHW"}
    both = [pd.concat(frames, ignore_index=True).assign(**constants) for frames in (predictions, choices)]
    return both[0].assign(supported=True), both[1].assign(top2_slowdown=1.0)


def write_folder(directory: Path, results: dict[str, Any], problems: int = 300) -> Path:
    """A folder as `seer compare` leaves it to the report."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(results), encoding="utf-8")
    predictions, choices = invented_frames(problems)
    predictions.to_parquet(directory / "predictions.parquet")
    choices.to_parquet(directory / "choices.parquet")
    return directory


@pytest.fixture
def results() -> dict[str, Any]:
    """The invented results, fresh for each test."""
    return invented_results()


@pytest.fixture
def folder_of() -> Callable[..., Path]:
    """`write_folder`: (directory, results, problems) → the folder."""
    return write_folder


@pytest.fixture
def choices() -> pd.DataFrame:
    """The content of choices.parquet."""
    return invented_frames()[1]


@pytest.fixture(scope="session")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from surrogate.report.page import write_report

    folder = write_folder(tmp_path_factory.mktemp("report") / "run", invented_results())
    write_report(folder)
    return folder


@pytest.fixture
def written(_written: Path) -> Path:
    """A completed report folder, shared: read it, do not change it."""
    return _written
