"""Models of networks → operators → totals: how long a network takes on a GPU, and where the time goes."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surrogate.network.load import Predictors, load_predictors
    from surrogate.network.network import Layer, Network
    from surrogate.network.predict import time_network
    from surrogate.network.read import read_network
    from surrogate.network.result import LayerTime, NetworkTime

_HOMES = {
    "Layer": "surrogate.network.network",
    "LayerTime": "surrogate.network.result",
    "Network": "surrogate.network.network",
    "NetworkTime": "surrogate.network.result",
    "Predictors": "surrogate.network.load",
    "load_predictors": "surrogate.network.load",
    "read_network": "surrogate.network.read",
    "time_network": "surrogate.network.predict",
}

__all__ = [
    "Layer",
    "LayerTime",
    "Network",
    "NetworkTime",
    "Predictors",
    "load_predictors",
    "read_network",
    "time_network",
]


def __getattr__(name: str) -> Any:
    """The public name, imported when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'surrogate.network' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
