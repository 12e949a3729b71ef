"""Follows one image's size and channels through a network and notes every convolution on the way."""

from dataclasses import dataclass, field

from surrogate.features.conv import Conv
from surrogate.features.elementwise import ceil_div


@dataclass(slots=True)
class Walk:
    """A square image of ``size`` × ``size`` with ``c`` channels, and the convolutions met so far (batch 1)."""

    size: int = 224
    c: int = 3
    layers: list[Conv] = field(default_factory=list)

    def conv(self, k: int, r: int, stride: int = 1, pad: int | None = None, groups: int = 1) -> "Walk":
        """A convolution to ``k`` channels, filter ``r`` × ``r``; padding defaults to (r − 1) / 2, which
        keeps the size.
        """
        pad = (r - 1) // 2 if pad is None else pad
        layer = Conv(n=1, c=self.c, h=self.size, k=k, r=r, pad_h=pad, stride_h=stride, groups=groups)
        self.layers.append(layer)
        self.size, self.c = layer.out_h, k
        return self

    def pool(self, r: int, stride: int, pad: int = 0, ceil: bool = False) -> "Walk":
        """A pooling window: only the size changes. ``ceil`` rounds the output size up, as Caffe's networks do."""
        reach = self.size + 2 * pad - r
        self.size = (ceil_div(reach, stride) if ceil else reach // stride) + 1
        return self

    def branch(self, size: int | None = None, c: int | None = None) -> "Walk":
        """A second path from here (or from an image of another size or depth) that notes into the same list."""
        return Walk(size or self.size, c or self.c, self.layers)
