"""Across-stack spans (XSP, IPDPS 2020): from profiler traces, from a live tracer, in leveled experiments."""

from surrogate.trace.spans.experiment import Leveled, LevelRun, leveled
from surrogate.trace.spans.from_trace import trace_spans
from surrogate.trace.spans.live import Tracer, tracer
from surrogate.trace.spans.modules import module_spans, operator_spans
from surrogate.trace.spans.table import LEVELS, Spans

__all__ = [
    "LEVELS",
    "LevelRun",
    "Leveled",
    "Spans",
    "Tracer",
    "leveled",
    "module_spans",
    "operator_spans",
    "trace_spans",
    "tracer",
]
