"""Public names; each is imported when it is first used."""

from . import kernel_tuner as kernel_tuner
from .optuna_sampler import Sampler as Sampler
from .triton_model import perf_model as perf_model
from .tuner import Tuner as Tuner
