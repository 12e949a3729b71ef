"""Profiler traces: events as columns, layers and spans, kernel and layer tables, and a live tracer.

Public names are imported on first use. ``span``, ``enable``, ``disable``, ``clear`` and ``recorded`` (the spans) belong
to one shared tracer: ``with surrogate.trace.span("layer", "conv1"): …``.
"""

from typing import Any

import lazy_loader

_lazy_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Import a public name and keep it, so that a later ``span`` is a plain attribute."""
    globals()[name] = value = _lazy_name(name)
    return value
