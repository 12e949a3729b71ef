"""Profiler traces: events as columns, layers and spans, kernel and layer tables, and a live tracer.

Public names are imported when first asked for; ``span``, ``enable``, ``disable``, ``clear`` and ``recorded`` (its
spans) are those of one shared tracer: ``with surrogate.trace.span("layer", "conv1"): …``.
"""

from typing import Any

import lazy_loader

_named, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """The public name, imported now and kept, so that a later ``span`` is a plain attribute."""
    globals()[name] = value = _named(name)
    return value
