"""Which problems a plan may hold: limits on the arithmetic and on the size of a tensor, and the workspace limit."""

from dataclasses import dataclass

from features import shape
from features.conv import Conv

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of a plan. FLOPs are 2 per multiply-add; a tensor is the input, the filter or the output alone."""

    min_flops: float = 1e6
    max_flops: float = 1.5e11
    max_tensor_bytes: int = 2 * GIB
    max_workspace_bytes: int = 16_000_000_000

    def reason(self, conv: Conv) -> str:
        """Why ``conv`` is left out of a plan, naming the limit without the problem's own figure; empty if it stays."""
        if max(shape.input_bytes(conv), shape.filter_bytes(conv), shape.output_bytes(conv)) > self.max_tensor_bytes:
            return f"a tensor over {self.max_tensor_bytes} bytes"
        if conv.flops > self.max_flops:
            return f"over {self.max_flops:g} FLOPs"
        return f"under {self.min_flops:g} FLOPs" if conv.flops < self.min_flops else ""


GPU_CAPS = Caps()
"""The protocol's limits for a data-centre GPU."""
CPU_CAPS = Caps(max_flops=2e9, max_tensor_bytes=GIB // 4, max_workspace_bytes=GIB)
"""Limits under which a CPU core stays within about a second a call."""
