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
GPUS = {"Tesla V100-SXM2-16GB": 1.0, "Tesla T4": 2.4, "TITAN Xp": 1.6, "Tesla K80": 5.0}
STRATA = {"1x1s1": 0.8, "1x1s2": 0.9, "3x3s1": 1.3, "grouped": 1.8, "other": 1.0}
ALGORITHMS = {
    "IMPLICIT_GEMM": "GEMM", "GEMM": "GEMM", "FFT": "FFT", "FFT_TILING": "FFT", "WINOGRAD": "WINOGRAD",
}  # fmt: skip
SIZES = tuple(name for name in SIZE_COLUMNS if name != "groups")


def invented_results() -> dict[str, Any]:
    """A results object with every kind of row: judged, and not judged with a reason."""
    random = np.random.default_rng(20)
    return {
        "schema": 1,
        "dataset": {
            "name": "invented test data", "rows": 41_250, "problems": 5_280, "shapes": 264, "gpus": list(GPUS),
            "candidates": "all", "where": ["direction=fwd"], "also_train": [],
        },
        "seeds": [0, 1, 2],
        "folds": 10,
        "choice_rows": _choice_rows(random),
        "time_rows": _time_rows(random),
    }  # fmt: skip


def _choice_rows(random: np.random.Generator) -> list[dict[str, Any]]:
    rows = []
    for stratum, hard in {"all": 1.1, "ungrouped": 1.0, **STRATA}.items():
        for gpu, old in {"all": 1.4, **GPUS}.items():
            if stratum not in ("all", "ungrouped") and gpu != "all":
                continue
            shapes = 264 if stratum == "all" else 212 if stratum == "ungrouped" else 53
            for model in (*MODELS, *REFERENCES):
                known = {"oracle": 0.0, "cudnn-heuristic": 0.06, "always-best-single": 0.4}
                loss = known[model] if model in known else 0.12 * MODELS[model]
                rows.append(_choice_row(random, model, stratum, gpu, shapes, loss * hard * old))
    slices = [(stratum, gpu) for stratum in ("all", "ungrouped") for gpu in ("all", *GPUS)]
    rows += [_unjudged("seer-paper", stratum, gpu) for stratum, gpu in slices]
    return rows


def _choice_row(
    random: np.random.Generator, model: str, stratum: str, gpu: str, shapes: int, loss: float
) -> dict[str, Any]:
    macro = 1 + loss * random.uniform(0.85, 1.15)
    wide = 0.35 * (macro - 1)
    paired = None if model == "cudnn-heuristic" else [np.log(macro / 1.08) + d for d in (-0.02, 0.0, 0.02)]
    return {
        "model": model, "split": "shape", "stratum": stratum, "gpu": gpu, "direction": "all", "dtype": "all",
        "math": "all", "n": shapes * (5 if gpu == "all" else 2), "shapes": shapes, "slowdown_macro": macro,
        "ci_low": macro - wide, "ci_high": macro + wide, "slowdown_geomean": 1 + 0.8 * (macro - 1),
        "slowdown_p95": 1 + 5 * (macro - 1), "slowdown_max": 1 + 40 * (macro - 1), "top1": 1 / macro**3,
        "within_10pct": 1.0 if model == "oracle" else 1 / macro, "top2_slowdown": 1 + 0.2 * (macro - 1),
        "infeasible_picks": 0 if model != "nearest" else 7, "paired_vs_heuristic": paired,
        "paired_problems": shapes * (5 if gpu == "all" else 2),
    }  # fmt: skip


def _unjudged(model: str, stratum: str, gpu: str) -> dict[str, Any]:
    reason = "needs kernel metrics <b>grid & block</b>, which this data lacks"
    row = {"model": model, "split": "shape", "stratum": stratum, "gpu": gpu, "n": 0, "shapes": 0}
    return {**row, "slowdown_macro": None, "paired_vs_heuristic": None, "reason": reason}


def _time_rows(random: np.random.Generator) -> list[dict[str, Any]]:
    families = sorted(set(ALGORITHMS.values()))
    slices = [(population, "all", "all") for population in ("all", "within-2x", "best")]
    slices += [("all", gpu, "all") for gpu in GPUS] + [("all", "all", family) for family in families]
    rows = []
    for population, gpu, algorithm in slices:
        for model, spread in MODELS.items():
            error = spread * random.uniform(0.9, 1.2) * (1.0 if population == "all" else 0.7)
            rows.append({
                "model": model, "split": "shape", "stratum": "all", "population": population, "gpu": gpu,
                "direction": "all", "dtype": "all", "math": "all", "algorithm": algorithm,
                "n": 33_000 if (gpu, algorithm) == ("all", "all") else 8_000, "shapes": 264,
                "median_ape": error, "mape": 1.6 * error, "p90_ape": 3.5 * error, "rmspe": 3.1 * error,
                "gmae": 0.8 * error, "spearman": 1 - 0.1 * error,
            })  # fmt: skip
    return rows


def invented_frames(problems: int = 300) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Predictions and choices of ``problems`` problems, two seeds, in the columns of the contract."""
    random = np.random.default_rng(21)
    base = pd.DataFrame({name: random.choice([1, 2, 4, 8, 16], problems) for name in SIZES}).assign(groups=1)
    base["gpu"] = random.choice(list(GPUS), problems)
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
            rows = base.assign(model=model, seed=seed, stratum=random.choice(list(STRATA), problems))
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
