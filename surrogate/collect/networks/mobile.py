"""Inverted bottlenecks with depthwise filters: MobileNet-v2 and EfficientNet-B0."""

from surrogate.collect.networks.builder import Walk

MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks, stride: Sandler et al. (2018), table 2."""
EFFICIENTNET_B0 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),    (6, 320, 1, 1, 3),
)  # fmt: skip
"""Expansion, channels, blocks, stride, filter: Tan and Le (2019), table 1."""


def inverted(walk: Walk, expansion: int, channels: int, stride: int, r: int, squeezed: bool) -> None:
    """1×1 up, depthwise ``r`` × ``r``, 1×1 down; ``squeezed`` adds the two 1×1 layers of squeeze-and-excitation."""
    wide, narrow = expansion * walk.c, max(1, walk.c // 4)
    if expansion > 1:
        walk.conv(wide, 1)
    walk.conv(wide, r, stride=stride, groups=wide)
    if squeezed:
        walk.branch(size=1).conv(narrow, 1).conv(wide, 1)
    walk.conv(channels, 1)


def mobilenet_v2(walk: Walk) -> None:
    """Sandler et al. (2018), width 1.0."""
    walk.conv(32, 3, stride=2)
    for expansion, channels, count, stride in MOBILENET_V2:
        for block in range(count):
            inverted(walk, expansion, channels, 1 if block else stride, 3, squeezed=False)
    walk.conv(1280, 1)


def efficientnet_b0(walk: Walk) -> None:
    """Tan and Le (2019), with squeeze-and-excitation to a quarter of the block's input channels."""
    walk.conv(32, 3, stride=2)
    for expansion, channels, count, stride, r in EFFICIENTNET_B0:
        for block in range(count):
            inverted(walk, expansion, channels, 1 if block else stride, r, squeezed=True)
    walk.conv(1280, 1)
