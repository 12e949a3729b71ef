"""Tables to fitted models: every model is a `TimeModel`, a scikit-learn regressor of kernel times.

Names are imported when they are first asked for, so that a stored model answers without pandas and scikit-learn.
"""

from typing import TYPE_CHECKING

from surrogate.features.lazy_names import lazy_names

if TYPE_CHECKING:
    from surrogate.models.base import TimeModel
    from surrogate.models.registry import DEFAULT_MODEL, MODELS, model_class, model_frame
    from surrogate.models.support import Support

_REGISTRY = "surrogate.models.registry"
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DEFAULT_MODEL": _REGISTRY,
        "MODELS": _REGISTRY,
        "Support": "surrogate.models.support",
        "TimeModel": "surrogate.models.base",
        "model_class": _REGISTRY,
        "model_frame": _REGISTRY,
    },
)

__all__ = ["DEFAULT_MODEL", "MODELS", "Support", "TimeModel", "model_class", "model_frame"]
