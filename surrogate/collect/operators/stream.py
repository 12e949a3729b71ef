"""CuPy's view of a stream that somebody else owns."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BorrowedStream:
    """A cudaStream_t under CUDA's stream protocol."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version, and the stream."""
        return 0, self.pointer


def cupy_stream(cupy: Any, pointer: int) -> Any:
    """The stream as CuPy's, usable in ``with``: by the protocol from CuPy 14 on, else by ``ExternalStream``."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(BorrowedStream(pointer))
    return cupy.cuda.ExternalStream(pointer)
