"""Public names and where they are defined: each is imported when it is first asked for."""

from . import kernel_tuner as kernel_tuner
from .optuna_sampler import Sampler as Sampler
from .triton_model import perf_model as perf_model
from .tuner import Tuner as Tuner
