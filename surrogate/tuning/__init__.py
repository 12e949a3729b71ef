"""One sequential search over a kernel's configurations, and its hooks for Triton, Kernel Tuner and Optuna.

``Tuner`` asks and tells; ``perf_model`` prunes the configurations of a `triton.autotune`; ``kernel_tuner`` is a
strategy of Kernel Tuner, and ``Sampler`` a sampler of Optuna's. None of these packages is needed by another's hook.
"""

import importlib
from typing import TYPE_CHECKING, Any

from surrogate.features import lazy_names

if TYPE_CHECKING:
    from surrogate.tuning import kernel_tuner
    from surrogate.tuning.optuna_sampler import Sampler
    from surrogate.tuning.triton_model import perf_model
    from surrogate.tuning.tuner import Tuner

_HOMES = {
    "Sampler": "surrogate.tuning.optuna_sampler",
    "Tuner": "surrogate.tuning.tuner",
    "perf_model": "surrogate.tuning.triton_model",
}
_named, __dir__ = lazy_names(__name__, _HOMES)
__all__ = ["Sampler", "Tuner", "kernel_tuner", "perf_model"]


def __getattr__(name: str) -> Any:
    """A public name; the strategy of Kernel Tuner is a module."""
    return importlib.import_module(f"{__name__}.kernel_tuner") if name == "kernel_tuner" else _named(name)
