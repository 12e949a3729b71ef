"""Limits on a plan's problems: their arithmetic, the size of a tensor, the workspace."""

from dataclasses import dataclass
from typing import Any

from surrogate.features import shape
from surrogate.features.conv import Conv

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of a plan. FLOPs are 2 per multiply-add; a tensor is the input, filter or output alone."""

    min_flops: float = 1e6
    max_flops: float = 1.5e11
    max_tensor_bytes: int = 2 * GIB
    max_workspace_bytes: int = 16_000_000_000

    def reason(self, conv: Conv) -> str:
        """Why ``conv`` is left out of a plan, by the limit's figure; empty if it stays."""
        if max(tensor_sizes_bytes(conv).values()) > self.max_tensor_bytes:
            return f"with a tensor over {self.max_tensor_bytes / MIB:,.0f} MiB"
        if conv.flops > self.max_flops:
            return f"over {self.max_flops:g} FLOPs"
        return f"under {self.min_flops:g} FLOPs" if conv.flops < self.min_flops else ""


GPU_CAPS = Caps()
"""The protocol's limits for a data-centre GPU."""
CPU_CAPS = Caps(max_flops=5e8, max_tensor_bytes=GIB // 16, max_workspace_bytes=GIB)
"""Limits under which most calls of the reference algorithms stay within a second on one CPU core."""


def tensor_sizes_bytes(conv: Conv) -> dict[str, int]:
    """Bytes of the input ``x``, the filter ``w`` and the output ``y``."""
    problem: Any = conv  # the formulas' protocol also admits columns, whose fields may be set
    return {
        "x": shape.input_bytes(problem),
        "w": shape.filter_bytes(problem),
        "y": shape.output_bytes(problem),
    }
