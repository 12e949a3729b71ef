"""Dependency graphs of traces: build, simulate, find the critical path (Daydream, ATC 2020).

``graph_of(trace) -> Graph`` converts host calls, the work between them and device activities into tasks. There are six
kinds of dependencies:

- order on a host thread
- order on a stream
- launch → device task
- device task → synchronising call
- computation → communication
- thread → thread

``simulate(graph) -> Timeline`` replays the graph. ``critical_path(timeline)`` returns the tasks that determine the
time. `surrogate.trace.whatif` changes graphs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
