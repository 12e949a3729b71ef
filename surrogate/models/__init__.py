"""Tables to fitted models: the `Model` protocol and one file per model."""

from surrogate.features.errors import InputError, nearest
from surrogate.models.base import Model
from surrogate.models.blend import Blend
from surrogate.models.boosted import BoostedDims, BoostedTerms
from surrogate.models.calibrated import Calibrated
from surrogate.models.forest import Forest
from surrogate.models.gaussian import GaussianTerms
from surrogate.models.li import LiEtAl
from surrogate.models.linear import LinearDims, LinearTerms
from surrogate.models.mlp import Mlp
from surrogate.models.roofline import Roofline
from surrogate.models.seer import SeerPaper, SeerTimeOnly
from surrogate.models.single import AlwaysBestSingle
from surrogate.models.support import Support

MODELS: dict[str, type[Model]] = {
    cls.name: cls
    for cls in (
        AlwaysBestSingle,
        Roofline,
        LiEtAl,
        SeerPaper,
        SeerTimeOnly,
        Forest,
        Mlp,
        LinearDims,
        LinearTerms,
        BoostedDims,
        BoostedTerms,
        GaussianTerms,
        Blend,
    )
}
"""Name → class of every model, in the order that reports list them."""

DEFAULT_MODEL = "blend"


def model_class(name: str) -> type[Model]:
    """The class of that name, `Calibrated` among them. Raises `InputError` with the nearest names."""
    if name == Calibrated.name:
        return Calibrated
    if name not in MODELS:
        raise InputError(f"model {name!r} is unknown; known: {', '.join(MODELS)}{nearest(name, MODELS)}")
    return MODELS[name]


__all__ = ["DEFAULT_MODEL", "MODELS", "Model", "Support", "model_class"]
