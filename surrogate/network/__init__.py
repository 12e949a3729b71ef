"""Models of networks → operators → totals: how long a network takes on a GPU, and where the time goes."""

from typing import TYPE_CHECKING

from surrogate.features import lazy_names

if TYPE_CHECKING:
    from surrogate.network.network import Layer, Network
    from surrogate.network.predict import Predictors, load_predictors
    from surrogate.network.read import read_network
    from surrogate.network.result import LayerTime, NetworkTime
    from surrogate.network.torch_module import time_module

_HOMES = {
    "Layer": "surrogate.network.network", "Network": "surrogate.network.network",
    "LayerTime": "surrogate.network.result", "NetworkTime": "surrogate.network.result",
    "Predictors": "surrogate.network.predict", "load_predictors": "surrogate.network.predict",
    "read_network": "surrogate.network.read", "time_module": "surrogate.network.torch_module",
}  # fmt: skip

__all__ = [
    "Layer", "LayerTime", "Network", "NetworkTime", "Predictors", "load_predictors", "read_network", "time_module",
]  # fmt: skip
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
