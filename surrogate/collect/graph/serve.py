"""The graph device in a process of its own: ``python -m surrogate.collect.graph.serve WORKSPACE TENSOR``."""

import os
import sys
from collections.abc import Sequence

from surrogate.collect.caps import Caps
from surrogate.collect.graph.device import GraphDevice
from surrogate.collect.worker import WorkerDevice, serve


def open_graph_device(caps: Caps) -> WorkerDevice:
    """cuDNN's graph engines, where a sticky CUDA error costs one measurement."""
    words = (str(caps.max_workspace_bytes), str(caps.max_tensor_bytes))
    return WorkerDevice([sys.executable, "-m", "surrogate.collect.graph.serve", *words])


def main(words: Sequence[str]) -> None:
    """Answer requests. Whatever a library writes to standard output goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    workspace_bytes, tensor_bytes = map(int, words)
    serve(
        lambda: GraphDevice(max_workspace_bytes=workspace_bytes, max_tensor_bytes=tensor_bytes),
        sys.stdin,
        replies,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
