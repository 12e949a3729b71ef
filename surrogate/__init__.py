"""SEER Surrogate: predict how long a GPU kernel takes without running it.

A prediction is the roofline time of the problem multiplied by a learned correction, and the algorithm with the smallest
prediction that the caller's limits allow is the pick.
"""

import importlib
from typing import TYPE_CHECKING, Any

from surrogate.lazy_names import lazy_names

if TYPE_CHECKING:
    from features.conv import Conv
    from features.errors import InputError
    from features.gpu import Gpu, gpu, gpus
    from surrogate.autotuning.autotune import autotune
    from surrogate.bundle import Bundle, save
    from surrogate.calibration.calibrate import calibrate
    from surrogate.comparing.compare import compare
    from surrogate.comparing.comparison import Comparison
    from surrogate.dataset.store import Dataset, read_dataset, write_dataset
    from surrogate.predictor import Prediction, Predictions, Predictor, Selection, load, predict, select
    from surrogate.training import evaluate, train

    __version__: str

_HOMES = {
    "Bundle": "surrogate.bundle",
    "Comparison": "surrogate.comparing.comparison",
    "Conv": "features.conv",
    "Dataset": "surrogate.dataset.store",
    "Gpu": "features.gpu",
    "InputError": "features.errors",
    "Prediction": "surrogate.predictor",
    "Predictions": "surrogate.predictor",
    "Predictor": "surrogate.predictor",
    "Selection": "surrogate.predictor",
    "autotune": "surrogate.autotuning.autotune",
    "calibrate": "surrogate.calibration.calibrate",
    "compare": "surrogate.comparing.compare",
    "evaluate": "surrogate.training",
    "gpu": "features.gpu",
    "gpus": "features.gpu",
    "load": "surrogate.predictor",
    "predict": "surrogate.predictor",
    "read_dataset": "surrogate.dataset.store",
    "save": "surrogate.bundle",
    "select": "surrogate.predictor",
    "train": "surrogate.training",
    "write_dataset": "surrogate.dataset.store",
}
"""Public name → the module that defines it; each is imported when it is first asked for."""
_ROOMS = ("dataset", "export", "formats", "models", "network", "operators", "streaming", "trace", "tune")
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
    """A public name or a room, imported now: ``import surrogate`` itself stays free of pandas and xgboost."""
    if name == "__version__":
        from importlib.metadata import version

        return version("seer-surrogate")
    if name in _ROOMS:
        return importlib.import_module(f"surrogate.{name}")
    return _named(name)
