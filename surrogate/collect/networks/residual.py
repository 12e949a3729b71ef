"""Residual networks: ResNet-18, -34, -50 and ResNeXt-50."""

from surrogate.collect.networks.builder import Walk

STAGES = (64, 128, 256, 512)


def basic(walk: Walk, repeats: tuple[int, ...]) -> None:
    """He et al. (2016), table 1, two 3×3 convolutions a block; a 1×1 projection where the size changes."""
    walk.conv(64, 7, stride=2).pool(3, 2, pad=1)
    for stage, (channels, count) in enumerate(zip(STAGES, repeats, strict=True)):
        for block in range(count):
            stride = 2 if stage and not block else 1
            if stride == 2:
                walk.branch().conv(channels, 1, stride=2)
            walk.conv(channels, 3, stride=stride).conv(channels, 3)


def bottleneck(walk: Walk, repeats: tuple[int, ...], groups: int = 1, group_width: int = 64) -> None:
    """He et al. (2016), table 1, 1×1, 3×3, 1×1, the stride on the 3×3; grouped as in Xie et al. (2017)."""
    walk.conv(64, 7, stride=2).pool(3, 2, pad=1)
    for stage, (channels, count) in enumerate(zip(STAGES, repeats, strict=True)):
        width = channels * group_width // 64 * groups
        for block in range(count):
            stride = 2 if stage and not block else 1
            if not block:
                walk.branch().conv(4 * channels, 1, stride=stride)
            walk.conv(width, 1).conv(width, 3, stride=stride, groups=groups).conv(4 * channels, 1)
