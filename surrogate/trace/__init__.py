"""Profiler traces: events as columns, layers and spans, kernel and layer tables, and a live tracer.

Public names are imported when first asked for; ``span``, ``enable``, ``disable``, ``clear`` and ``recorded`` (its
spans) are those of one shared tracer: ``with surrogate.trace.span("layer", "conv1"): …``.
"""

from typing import Any

from surrogate.features import homes_in, lazy_names

_HOMES = homes_in(
    __name__,
    {
        "events.iterations": "iterations trim",
        "events.read": "read_trace",
        "events.tables": "Trace",
        "diff": "trace_diff",
        "findings": "advice",
        "kernels": "GROUPINGS kernel_table with_counters",
        "layers": "find_layers",
        "profiling": "Profile profile",
        "iteration.ranks": "rank_summary",
        "result": "ResultTable",
        "spans": "LEVELS Spans trace_spans",
        "tables": "batch_sweep copy_table layer_table step_table summary type_table",
        "tracer": "Tracer clear disable enable module_spans operator_spans recorded span leveled leveled_traces"
        " merge_levels",
        "whatif": "what_ifs",
    },
)

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
_named, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    """The public name, imported now and kept, so that a later ``span`` is a plain attribute."""
    globals()[name] = value = _named(name)
    return value
