"""A bundle fitted on the made-up kernel."""

from pathlib import Path

import pytest

from surrogate.bundle.bundle import Bundle, save
from surrogate.bundle.train import train
from tests.tuning.made_up import COLUMNS, SHAPES, times

HOLDOUT = ((256, 2048), (1024, 512))
"""Shapes left out of training."""


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    shapes = tuple(shape for shape in SHAPES if shape not in HOLDOUT)
    return train(times(shapes, ("v100-sxm2-16gb", "our own gpu")), kernel=COLUMNS)


@pytest.fixture(scope="session")
def bundle_path(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "B"
    save(bundle, path)
    return path
