"""Small bundles for tests of predictions: boosters of a few rounds on invented times, trained once per session."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from surrogate.bundle.bundle import Bundle, FamilyModel, save
from surrogate.bundle.train import candidate_keys, row_counts
from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import rows_by_family
from surrogate.dataset.store import Dataset, as_dataset
from surrogate.models import Support
from surrogate.models.boosted import BoostedTerms
from surrogate.models.call_cost import CallCost, CallKey
from surrogate.models.requirements import Requirements
from surrogate.prediction.predictor import Predictor
from surrogate.uncertainty.domain import Domain
from surrogate.uncertainty.intervals import ALL, HeldOutGpuErrors, StepFunction, UnmeasuredGpuErrors, WidthKey, Widths
from tests.tables import every

GPUS = ("Tesla V100-SXM2-16GB", "Tesla T4")
ALGORITHMS = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "FFT", "WINOGRAD")
CARD = {"data": {"gpus": list(GPUS), "libraries": ["cudnn 7.6.3"], "ok_rows": 100, "rows": 100, "name": "invented"}}
WIDTHS = Widths(
    {ALL: 0.3, WidthKey(None, "cudnn|fwd|FFT"): 0.5, WidthKey("t4", "cudnn|fwd|FFT"): 0.6},
    StepFunction((0.2, 0.6), (1.0, 1.5, 2.0)),
    StepFunction((20.0,), (1.4, 1.0)),
    0.6,
)
"""Widths that depend on the GPU, the candidate, the distance and the time."""


def bundle_of(frame, model=None, kernel=None, **more) -> Bundle:
    """Return a bundle fitted without held-out folds; ``model`` fits every family, ``kernel`` describes the table."""
    parts = {}
    data = Dataset(normalise(frame, "table")) if kernel is None else as_dataset(frame, kernel)
    for kind, (_, rows) in rows_by_family(data.frame, described_family=data.described_family).items():
        fitted = (type(model)(**model.get_params()) if model else BoostedTerms(rounds=40)).fit(rows)
        ok = rows.take(rows.ok)
        shapes = (Support.fit(rows), WIDTHS, Domain.of(ok))
        errors = UnmeasuredGpuErrors({"": HeldOutGpuErrors(3, 0.2, 0.9)})
        parts[kind.name] = FamilyModel(
            kind, fitted, *shapes, errors, candidate_keys(ok), row_counts(ok), requirements=Requirements.fit(ok)
        )
    return Bundle(parts, **{"card": CARD, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def frame(table: Callable[..., pd.DataFrame]) -> pd.DataFrame:
    """Return convolutions of two GPUs, two library versions and four algorithms."""
    old = table(16, gpus=GPUS, version="7.5.0", algorithms=ALGORITHMS, seed=1)
    new = table(16, gpus=GPUS, version="7.6.3", algorithms=ALGORITHMS, batches=(1, 8, 32), seed=2)
    return pd.concat([old, new], ignore_index=True)


@pytest.fixture(scope="session")
def operators() -> pd.DataFrame:
    """Return two pointwise operators of one library and matrix products of two libraries, on the same GPUs."""
    products = every(gpu=GPUS, m=(64, 200, 512, 1000, 3000), library=("cublas", "torch"))
    products = products.assign(family="gemm", operator="gemm", batch=1, n=512, k=256)
    products["time_us"] = products["library"].map({"cublas": 1.2, "torch": 1.5}) * (5 + products["m"] / 10)
    images = every(gpu=GPUS, h=(64, 200, 512, 1000, 3000), operator=("relu", "add"))
    images = images.assign(family="pointwise", library="torch", n=8, c=64, w=56)
    images["time_us"] = images["operator"].map({"relu": 1.0, "add": 1.6}) * (12 + images["h"])
    fixed = {"library_version": "1", "status": "ok", "algorithm": "default"}
    fixed |= {"dtype": "fp32", "math": "fma", "variant": ""}
    return pd.concat([products, images], ignore_index=True).fillna(0).assign(**fixed)


@pytest.fixture(scope="session")
def bundle(frame: pd.DataFrame) -> Bundle:
    """Return a bundle of boosted trees (40 rounds) for convolutions."""
    return bundle_of(frame)


@pytest.fixture(scope="session")
def many_families(frame: pd.DataFrame, operators: pd.DataFrame) -> Bundle:
    """Return a bundle with convolutions, matrix products and pointwise operators."""
    costs = {CallKey("", "torch"): CallCost(12.0, 6.0, 1.0)}
    together = pd.concat([frame.assign(family="conv"), operators], ignore_index=True)
    numbers = together.select_dtypes("number").columns.difference(["time_us"])
    return bundle_of(together.fillna(dict.fromkeys(numbers, 0)), call_costs=costs)


@pytest.fixture(scope="session")
def folder(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that `bundle` was saved to."""
    path = tmp_path_factory.mktemp("bundles") / "small"
    save(bundle, path)
    return path


@pytest.fixture(scope="session")
def predictor(bundle: Bundle) -> Predictor:
    """Return the predictor of the V100."""
    return Predictor(bundle, gpu="v100")
