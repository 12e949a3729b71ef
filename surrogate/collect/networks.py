"""The convolutions of well-known networks, from their published tables (224 × 224 RGB images)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from surrogate.collect.plan import PlannedProblem
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


INCEPTION_V1 = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128), (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip
"""1×1, 3×3 reduce, 3×3, 5×5 reduce, 5×5, pool projection: Szegedy et al. (2015), table 1, modules 3a … 5b."""
POOL_BEFORE = (2, 7)
"""Modules (4a and 5a) before which the image is halved."""


def inception_v1(walk: Walk) -> None:
    """Szegedy et al. (2015), without the auxiliary classifiers."""
    walk.conv(64, 7, stride=2).pool(3, 2, ceil=True).conv(64, 1).conv(192, 3).pool(3, 2, ceil=True)
    for index, (single, reduce3, three, reduce5, five, pooled) in enumerate(INCEPTION_V1):
        if index in POOL_BEFORE:
            walk.pool(3, 2, ceil=True)
        walk.branch().conv(single, 1)
        walk.branch().conv(reduce3, 1).conv(three, 3)
        walk.branch().conv(reduce5, 1).conv(five, 5)
        walk.branch().conv(pooled, 1)
        walk.c = single + three + five + pooled


def densenet121(walk: Walk) -> None:
    """Huang et al. (2017), table 1, growth 32: each layer is 1×1 to 128 channels, then 3×3 to 32, concatenated."""
    walk.conv(64, 7, stride=2).pool(3, 2, pad=1)
    for index, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            walk.branch().conv(128, 1).conv(32, 3)
            walk.c += 32
        if index < 3:
            walk.conv(walk.c // 2, 1).pool(2, 2)


MOBILENET_V2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, channels, blocks, stride: Sandler et al. (2018), table 2."""
EFFICIENTNET_B0 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
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


NETWORKS: Mapping[str, Callable[[Walk], None]] = {
    "AlexNet": alexnet,
    "VGG-16": partial(vgg, repeats=(2, 2, 3, 3, 3)),
    "VGG-19": partial(vgg, repeats=(2, 2, 4, 4, 4)),
    "Inception-V1": inception_v1,
    "SqueezeNet-1.1": squeezenet,
    "ResNet-18": partial(basic, repeats=(2, 2, 2, 2)),
    "ResNet-34": partial(basic, repeats=(3, 4, 6, 3)),
    "ResNet-50": partial(bottleneck, repeats=(3, 4, 6, 3)),
    "ResNeXt-50-32x4d": partial(bottleneck, repeats=(3, 4, 6, 3), groups=32, group_width=4),
    "DenseNet-121": densenet121,
    "MobileNet-v2": mobilenet_v2,
    "EfficientNet-B0": efficientnet_b0,
}
"""Name → the function that walks an image through it."""


def layers(name: str) -> tuple[Conv, ...]:
    """Every convolution of the network ``name`` in the order of its table, at batch 1, fp32 NCHW forward."""
    walk = Walk()
    NETWORKS[name](walk)
    return tuple(walk.layers)


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Batches at which every layer is planned."""


def network_problems(batches: tuple[int, ...] = BATCHES) -> list[PlannedProblem]:
    """Every distinct layer at every batch, with the names of the networks it occurs in."""
    distinct: dict[str, PlannedProblem] = {}
    for name in NETWORKS:
        for conv in layers(name):
            known = distinct.get(str(conv))
            names = (*known.networks, name) if known else (name,)
            distinct[str(conv)] = PlannedProblem(conv, "network", tuple(dict.fromkeys(names)))
    return [
        PlannedProblem(problem.conv.with_batch(n), problem.origin, problem.networks)
        for problem in distinct.values()
        for n in batches
    ]
