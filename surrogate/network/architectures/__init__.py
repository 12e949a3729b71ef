"""Well-known networks without their weights, described once and built as ONNX graphs or as torch modules.

``seer network surrogate.network.architectures.torch_modules:resnet50 --gpu t4`` times one without any file.
"""

from collections.abc import Callable, Mapping
from functools import partial

from surrogate.network.architectures import other, vision
from surrogate.network.architectures.builder import Builder

ARCHITECTURES: Mapping[str, Callable[[Builder, int], object]] = {
    "alexnet": vision.alexnet,
    "vgg16": partial(vision.vgg, repeats=(2, 2, 3, 3, 3)),
    "vgg19": partial(vision.vgg, repeats=(2, 2, 4, 4, 4)),
    "inception_v1": vision.inception_v1,
    "resnet18": partial(vision.resnet, repeats=(2, 2, 2, 2), wide=False),
    "resnet34": partial(vision.resnet, repeats=(3, 4, 6, 3), wide=False),
    "resnet50": partial(vision.resnet, repeats=(3, 4, 6, 3)),
    "resnet101": partial(vision.resnet, repeats=(3, 4, 23, 3)),
    "resnet152": partial(vision.resnet, repeats=(3, 8, 36, 3)),
    "resnet200": partial(vision.resnet, repeats=(3, 24, 36, 3)),
    "mobilenet_v2": vision.mobilenet_v2,
    "densenet121": vision.densenet121,
    "dlrm": other.dlrm,
    "transformer": other.transformer,
}
"""Name → the function that builds it with a `Builder` at a batch size."""
