"""The convolutions of well-known networks, generated from their published tables (224 × 224 RGB images)."""

from collections.abc import Callable, Mapping
from functools import partial

from surrogate.collect.networks.branching import densenet121, inception_v1
from surrogate.collect.networks.builder import Walk
from surrogate.collect.networks.mobile import efficientnet_b0, mobilenet_v2
from surrogate.collect.networks.plain import alexnet, squeezenet, vgg
from surrogate.collect.networks.residual import basic, bottleneck
from surrogate.features.conv import Conv

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
