"""Every operator model by name: the baselines, and the boosted trees, alone and blended."""

from surrogate.features.errors import InputError, nearest
from surrogate.operators.baselines import BASELINES
from surrogate.operators.blended import BlendedOperators
from surrogate.operators.boosted import BoostedOperators
from surrogate.operators.model import OperatorModel

OPERATOR_MODELS: dict[str, type[OperatorModel]] = {
    **BASELINES,
    BoostedOperators.name: BoostedOperators,
    BlendedOperators.name: BlendedOperators,
}
"""Name → class, in the order that tables list them."""


def operator_model(name: str) -> type[OperatorModel]:
    """The class of that name. Raises `InputError` with the nearest names."""
    if name not in OPERATOR_MODELS:
        raise InputError(
            f"operator model {name!r} is unknown; known: {', '.join(OPERATOR_MODELS)}{nearest(name, OPERATOR_MODELS)}"
        )
    return OPERATOR_MODELS[name]
