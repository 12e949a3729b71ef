"""The profiler traces of several experiments. An archive contains one trace per worker."""

from experiments.sources import TRACES, Sources
from surrogate.trace.events.read import trace_files
from surrogate.trace.events.tables import Trace

RESNET50, VGG13, DLRM, RESNET, POWER = TRACES


def workers(sources: Sources, label: str) -> list[Trace]:
    """Return the trace of that label, or the traces of all its workers. Raises `InputError` for a damaged file."""
    with trace_files([sources.path(TRACES[label])]) as files:
        return [file.read() for file in files]
