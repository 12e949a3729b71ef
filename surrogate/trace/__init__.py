"""Profiler traces: events as columns, layers and spans, kernel and layer tables, and a live tracer.

Public names are imported when first asked for; ``span``, ``enable``, ``disable``, ``clear`` and ``recorded`` (its
spans) are those of one shared tracer: ``with surrogate.trace.span("layer", "conv1"): …``.
"""

from typing import Any

from surrogate.features.lazy_names import lazy_names

_HOMES = {
    "GROUPINGS": "surrogate.trace.kernels",
    "LEVELS": "surrogate.trace.spans",
    "Profile": "surrogate.trace.profiling",
    "Rows": "surrogate.trace.result",
    "Spans": "surrogate.trace.spans",
    "Trace": "surrogate.trace.events",
    "Tracer": "surrogate.trace.spans",
    "batch_sweep": "surrogate.trace.overview",
    "copy_table": "surrogate.trace.copies",
    "find_layers": "surrogate.trace.layers",
    "iterations": "surrogate.trace.events",
    "kernel_table": "surrogate.trace.kernels",
    "layer_table": "surrogate.trace.layer_times",
    "leveled": "surrogate.trace.spans",
    "module_spans": "surrogate.trace.spans",
    "operator_spans": "surrogate.trace.spans",
    "profile": "surrogate.trace.profiling",
    "read_trace": "surrogate.trace.events",
    "summary": "surrogate.trace.overview",
    "trace_spans": "surrogate.trace.spans",
    "trim": "surrogate.trace.events",
    "type_table": "surrogate.trace.layer_times",
    "with_execution_trace": "surrogate.trace.events",
}
_OF_TRACER = {"clear": "clear", "disable": "disable", "enable": "enable", "recorded": "spans", "span": "span"}

__all__ = [*_OF_TRACER, *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
_named, _ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    """The public name, imported now and kept, so that a later ``span`` is a plain attribute."""
    if name in _OF_TRACER:
        from surrogate.trace.spans.live import tracer

        found = getattr(tracer, _OF_TRACER[name])
    else:
        found = _named(name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
