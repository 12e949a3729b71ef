"""Tables to fitted models: every model is a `TimeModel`, a scikit-learn regressor of kernel times.

Names are imported when they are first asked for, so that a stored model answers without pandas and scikit-learn.
"""

from typing import TYPE_CHECKING

from surrogate.features import homes_in, lazy_names

if TYPE_CHECKING:
    from surrogate.models.base import TimeModel
    from surrogate.models.registry import DEFAULT_MODEL, MODELS, model_class, model_frame
    from surrogate.models.support import Support

_HOMES = homes_in(
    __name__, {"base": "TimeModel", "registry": "DEFAULT_MODEL MODELS model_class model_frame", "support": "Support"}
)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = ["DEFAULT_MODEL", "MODELS", "Support", "TimeModel", "model_class", "model_frame"]
