"""Networks without wide branching: AlexNet, VGG-16 and VGG-19, SqueezeNet 1.1."""

from surrogate.collect.networks.builder import Walk


def alexnet(walk: Walk) -> None:
    """Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014): the one-tower form."""
    walk.conv(64, 11, stride=4, pad=2).pool(3, 2).conv(192, 5).pool(3, 2)
    walk.conv(384, 3).conv(256, 3).conv(256, 3)


def vgg(walk: Walk, repeats: tuple[int, ...]) -> None:
    """Simonyan and Zisserman (2015), table 1, columns D and E: 3×3 stages, each ending in 2×2 pooling."""
    for channels, count in zip((64, 128, 256, 512, 512), repeats, strict=True):
        for _ in range(count):
            walk.conv(channels, 3)
        walk.pool(2, 2)


def squeezenet(walk: Walk) -> None:
    """Iandola et al. (2016), version 1.1: fire modules squeeze by 1×1, then expand by 1×1 and 3×3 side by side."""
    walk.conv(64, 3, stride=2, pad=0).pool(3, 2, ceil=True)
    for squeeze, expand, pooled in (
        (16, 64, False), (16, 64, True), (32, 128, False), (32, 128, True),
        (48, 192, False), (48, 192, False), (64, 256, False), (64, 256, False),
    ):  # fmt: skip
        walk.conv(squeeze, 1)
        walk.branch().conv(expand, 1)
        walk.branch().conv(expand, 3)
        walk.c = 2 * expand
        if pooled:
            walk.pool(3, 2, ceil=True)
    walk.conv(1000, 1)
