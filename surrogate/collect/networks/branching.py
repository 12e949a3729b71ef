"""Networks that concatenate: Inception-V1 and DenseNet-121."""

from surrogate.collect.networks.builder import Walk

INCEPTION_V1 = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip
"""1×1, 3×3 reduce, 3×3, 5×5 reduce, 5×5, pool projection: Szegedy et al. (2015), table 1, modules 3a … 5b."""
POOL_BEFORE = (2, 7)
"""Modules (4a and 5a) before which the image is halved."""


def inception_v1(walk: Walk) -> None:
    """Szegedy et al. (2015), without the auxiliary classifiers."""
    walk.conv(64, 7, stride=2).pool(3, 2, ceil=True).conv(64, 1).conv(192, 3).pool(3, 2, ceil=True)
    for index, (one, reduce3, three, reduce5, five, pooled) in enumerate(INCEPTION_V1):
        if index in POOL_BEFORE:
            walk.pool(3, 2, ceil=True)
        walk.branch().conv(one, 1)
        walk.branch().conv(reduce3, 1).conv(three, 3)
        walk.branch().conv(reduce5, 1).conv(five, 5)
        walk.branch().conv(pooled, 1)
        walk.c = one + three + five + pooled


def densenet121(walk: Walk) -> None:
    """Huang et al. (2017), table 1, growth 32: each layer is 1×1 to 128 channels, then 3×3 to 32, concatenated."""
    walk.conv(64, 7, stride=2).pool(3, 2, pad=1)
    for index, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            walk.branch().conv(128, 1).conv(32, 3)
            walk.c += 32
        if index < 3:
            walk.conv(walk.c // 2, 1).pool(2, 2)
