"""Dependency graphs of traces: build, simulate, find the critical path (Daydream, ATC 2020).

``graph_of(trace) -> Graph`` turns host calls, the work between them and device activities into tasks with all six
dependencies: order on a host thread, order on a stream, launch → device task, device task → synchronising call,
computation → communication, thread → thread. ``simulate(graph) -> Timeline`` replays it, ``critical_path(timeline)``
says what decides the time. Changing a graph is what `surrogate.trace.whatif` is for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
