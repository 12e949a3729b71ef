"""What the boosted operator models are compared with: roofline, published interpolations and fits, a neural network."""

from surrogate.operators.baselines.gradient_ratio import GradientRatio
from surrogate.operators.baselines.interpolation import GemmInterpolation
from surrogate.operators.baselines.mlp import OperatorMlp
from surrogate.operators.baselines.polynomial import SeerPolynomials
from surrogate.operators.baselines.roofline import OperatorRoofline
from surrogate.operators.model import OperatorModel

BASELINES: dict[str, type[OperatorModel]] = {
    cls.name: cls
    for cls in (OperatorRoofline, GemmInterpolation, SeerPolynomials, GradientRatio, OperatorMlp)
}
"""Name → class, in the order that tables list them."""

__all__ = [
    "BASELINES",
    "GemmInterpolation",
    "GradientRatio",
    "OperatorMlp",
    "OperatorRoofline",
    "SeerPolynomials",
]
