"""Operators other than convolutions: measured tables, models, baselines, a bundle, and a predictor.

A prediction is the operator's roofline time plus its call's fixed cost, multiplied by a learned correction.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surrogate.operators.bundle import OperatorBundle, load_operators, save_operators
    from surrogate.operators.judging import HeldOut, hold_out
    from surrogate.operators.prediction import OperatorTime
    from surrogate.operators.predictor import OperatorPredictor, operator_time_us
    from surrogate.operators.table import OperatorTable, read_operators
    from surrogate.operators.training import train_operators

_HOMES = {
    "HeldOut": "judging",
    "OperatorBundle": "bundle",
    "OperatorPredictor": "predictor",
    "OperatorTable": "table",
    "OperatorTime": "prediction",
    "hold_out": "judging",
    "load_operators": "bundle",
    "operator_time_us": "predictor",
    "read_operators": "table",
    "save_operators": "bundle",
    "train_operators": "training",
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


def __getattr__(name: str) -> Any:
    """The public name, imported when it is first asked for: pandas and xgboost stay out until then."""
    if name not in _HOMES:
        raise AttributeError(f"module 'surrogate.operators' has no attribute {name!r}")
    return getattr(importlib.import_module(f"surrogate.operators.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
