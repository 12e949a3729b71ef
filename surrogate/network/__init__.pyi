"""Public names and the modules that define them; each is imported at its first use."""

from .network import Layer as Layer, Network as Network, ReadOptions as ReadOptions
from .predict import Predictors as Predictors, load_predictors as load_predictors
from .read import read_network as read_network
from .result import GpuComparison as GpuComparison, LayerTime as LayerTime, NetworkTime as NetworkTime
from .serving_result import Serving as Serving
from .serving_search import Choices as Choices, serve as serve
from .torch_module import time_module as time_module
