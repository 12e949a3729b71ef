"""SEER Surrogate: predict how long a GPU kernel takes without running it.

A prediction is the roofline time of the problem multiplied by a learned correction, and the algorithm with the smallest
prediction that the caller's limits allow is the pick.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not (Path(__file__).parent / "features").is_dir():  # a checkout or sdist without symbolic links
    __path__.append(str(Path(__file__).parents[1]))

from surrogate.features import homes_in, lazy_names

if TYPE_CHECKING:
    from surrogate.bundle.bundle import Bundle, save
    from surrogate.bundle.train import train
    from surrogate.dataset.store import Dataset, read_dataset, write_dataset
    from surrogate.features.conv import Conv
    from surrogate.features.errors import InputError
    from surrogate.features.gpu import Gpu, gpu, gpus
    from surrogate.prediction.autotune import autotune
    from surrogate.prediction.calibrate import calibrate
    from surrogate.prediction.evaluate import evaluate
    from surrogate.prediction.predictor import Predictor
    from surrogate.prediction.results import Prediction, Predictions, Selection
    from surrogate.prediction.shipped import load, predict, select
    from surrogate.report.comparison import Comparison, compare

    __version__: str

_HOMES = homes_in(
    __name__,
    {
        "bundle.bundle": "Bundle save",
        "bundle.train": "train",
        "dataset.store": "Dataset read_dataset write_dataset",
        "features.conv": "Conv",
        "features.errors": "InputError",
        "features.gpu": "Gpu gpu gpus",
        "prediction.autotune": "autotune",
        "prediction.calibrate": "calibrate",
        "prediction.evaluate": "evaluate",
        "prediction.predictor": "Predictor",
        "prediction.results": "Prediction Predictions Selection",
        "prediction.shipped": "load predict select",
        "report.comparison": "Comparison compare",
    },
)
"""Public name → the module that defines it; each is imported when it is first asked for."""
_ROOMS = ("formats", "models", "network", "trace")
"""Packages with public names of their own, as in ``surrogate.trace.span``."""

__all__ = [
    "Bundle",
    "Comparison",
    "Conv",
    "Dataset",
    "Gpu",
    "InputError",
    "Prediction",
    "Predictions",
    "Predictor",
    "Selection",
    "autotune",
    "calibrate",
    "compare",
    "evaluate",
    "gpu",
    "gpus",
    "load",
    "predict",
    "read_dataset",
    "save",
    "select",
    "train",
    "write_dataset",
]

_named, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    """A public name or a subpackage, imported now: ``import surrogate`` itself imports no pandas and no xgboost."""
    if name == "__version__":
        from importlib.metadata import version

        return version("seer-surrogate")
    if name in _ROOMS:
        return importlib.import_module(f"surrogate.{name}")
    return _named(name)
