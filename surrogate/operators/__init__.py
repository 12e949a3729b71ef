"""Operators other than convolutions: measured tables, models, baselines, a bundle, and a predictor.

A prediction is the operator's roofline time plus its call's fixed cost, multiplied by a learned correction.
"""

from typing import TYPE_CHECKING

from surrogate.features.lazy_names import lazy_names

if TYPE_CHECKING:
    from surrogate.operators.bundle import OperatorBundle, load_operators, save_operators
    from surrogate.operators.judging import HeldOut, hold_out
    from surrogate.operators.prediction import OperatorTime
    from surrogate.operators.predictor import OperatorPredictor, operator_time_us
    from surrogate.operators.table import OperatorTable, read_operators
    from surrogate.operators.training import train_operators

_HOMES = {
    "HeldOut": "surrogate.operators.judging",
    "OperatorBundle": "surrogate.operators.bundle",
    "OperatorPredictor": "surrogate.operators.predictor",
    "OperatorTable": "surrogate.operators.table",
    "OperatorTime": "surrogate.operators.prediction",
    "hold_out": "surrogate.operators.judging",
    "load_operators": "surrogate.operators.bundle",
    "operator_time_us": "surrogate.operators.predictor",
    "read_operators": "surrogate.operators.table",
    "save_operators": "surrogate.operators.bundle",
    "train_operators": "surrogate.operators.training",
}

__all__ = [
    "HeldOut",
    "OperatorBundle",
    "OperatorPredictor",
    "OperatorTable",
    "OperatorTime",
    "hold_out",
    "load_operators",
    "operator_time_us",
    "read_operators",
    "save_operators",
    "train_operators",
]


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
