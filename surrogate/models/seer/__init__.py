"""SEER (PACT 2021): `seer-paper` from kernel counters, `seer-time-only` where only times were measured."""

from surrogate.models.seer.kernels import METRIC_COLUMNS, with_kernel_metrics
from surrogate.models.seer.paper import SeerPaper
from surrogate.models.seer.time_only import SeerTimeOnly

__all__ = ["METRIC_COLUMNS", "SeerPaper", "SeerTimeOnly", "with_kernel_metrics"]
