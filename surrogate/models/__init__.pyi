"""Public names and where they are defined; each is imported on first use."""

from .base import TimeModel as TimeModel
from .registry import (
    DEFAULT_MODEL as DEFAULT_MODEL,
    MODELS as MODELS,
    model_class as model_class,
    model_frame as model_frame,
)
from .support import Support as Support
