"""Small bundles for serving: one booster of a few rounds on invented times, trained once per session."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from surrogate.bundle.bundle import Bundle, save
from surrogate.bundle.training import train
from surrogate.dataset.store import Dataset
from surrogate.models.boosted import BoostedTerms
from surrogate.prediction.predictor import Predictor

GPUS = ("Tesla V100-SXM2-16GB", "Tesla T4")
ALGORITHMS = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "FFT", "WINOGRAD")


@pytest.fixture(scope="session")
def frame(table: Callable[..., pd.DataFrame]) -> pd.DataFrame:
    """Two GPUs, two library versions, four algorithms."""
    old = table(16, gpus=GPUS, version="7.5.0", algorithms=ALGORITHMS, seed=1)
    new = table(16, gpus=GPUS, version="7.6.3", algorithms=ALGORITHMS, batches=(1, 8, 32), seed=2)
    return pd.concat([old, new], ignore_index=True)


@pytest.fixture(scope="session")
def bundle(frame: pd.DataFrame) -> Bundle:
    """A boosted bundle of 40 rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BoostedTerms.DEFAULTS, "rounds", 40)
        patch.setitem(BoostedTerms.DEFAULTS, "learning_rate", 0.2)
        return train(Dataset(frame), model=BoostedTerms.name)


@pytest.fixture(scope="session")
def folder(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bundle` on disk."""
    path = tmp_path_factory.mktemp("bundles") / "small"
    save(bundle, path)
    return path


@pytest.fixture(scope="session")
def predictor(bundle: Bundle) -> Predictor:
    """The V100's, in numpy."""
    return Predictor(bundle, gpu="v100", backend="numpy")
