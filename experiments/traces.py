"""The profiler traces that several experiments read; an archive holds one per worker."""

import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from experiments.sources import Sources
from surrogate.trace.events.read import read_trace
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
    path = sources.path(TRACES[label])
    return list(_unpacked(path)) if tarfile.is_tarfile(path) else [read_trace(path)]


def _unpacked(path: Path) -> Iterator[Trace]:
    """Every .json of an archive, by name; written under a name of our own, as those in an archive may lead anywhere."""
    with tarfile.open(path) as archive, tempfile.TemporaryDirectory() as folder:
        members = [member for member in archive.getmembers() if member.isfile() and member.name.endswith(".json")]
        for member in sorted(members, key=lambda member: member.name):
            content = archive.extractfile(member)
            if content is not None:
                copy = Path(folder) / "worker.json"
                copy.write_bytes(content.read())
                yield read_trace(copy)
