"""The profiler traces that several experiments read; an archive holds one per worker."""

from experiments.sources import TRACES, Sources
from surrogate.trace.events.read import trace_files
from surrogate.trace.events.tables import Trace

RESNET50, VGG13, DLRM, RESNET, POWER = TRACES


def workers(sources: Sources, label: str) -> list[Trace]:
    """The trace of that label, or those of all its workers. Raises `InputError` for a damaged file."""
    with trace_files([sources.path(TRACES[label])]) as files:
        return [file.read() for file in files]
