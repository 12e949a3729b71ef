"""Models of networks → operators → totals: how long a network takes on a GPU, and where the time goes."""

from typing import TYPE_CHECKING

from surrogate.features import homes_in, lazy_names

if TYPE_CHECKING:
    from surrogate.network.network import Layer, Network, ReadOptions
    from surrogate.network.predict import Predictors, load_predictors
    from surrogate.network.read import read_network
    from surrogate.network.result import LayerTime, NetworkTime
    from surrogate.network.serving_choices import Choices
    from surrogate.network.serving_search import Serving, serve
    from surrogate.network.torch_module import time_module

_HOMES = homes_in(
    __name__,
    {
        "network": "Layer Network ReadOptions",
        "predict": "Predictors load_predictors",
        "read": "read_network",
        "result": "LayerTime NetworkTime",
        "serving_choices": "Choices",
        "serving_search": "Serving serve",
        "torch_module": "time_module",
    },
)

__all__ = [
    "Choices",
    "Layer",
    "LayerTime",
    "Network",
    "NetworkTime",
    "Predictors",
    "ReadOptions",
    "Serving",
    "load_predictors",
    "read_network",
    "serve",
    "time_module",
]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
