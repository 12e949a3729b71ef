"""The profiler traces that several experiments read; an archive holds one per worker."""

from experiments.sources import Sources
from surrogate.trace.events.read import trace_files
from surrogate.trace.events.tables import Trace

RESNET50, VGG13, DLRM = "ResNet-50, V100", "VGG-13, H100", "DLRM, 8 × V100"
RESNET, POWER = "ResNet, RTX 2080 Ti", "power iteration, T4"
TRACES = {
    RESNET50: "trace_resnet50",
    VGG13: "trace_vgg13",
    DLRM: "trace_dlrm",
    RESNET: "trace_resnet",
    POWER: "trace_power_iteration",
}
"""How tables and sentences name a trace → its source name in `experiments.sources.FILES`."""


def workers(sources: Sources, label: str) -> list[Trace]:
    """The trace of that label, or those of all its workers. Raises `InputError` for a damaged file."""
    with trace_files([sources.path(TRACES[label])]) as files:
        return [file.read() for file in files]
