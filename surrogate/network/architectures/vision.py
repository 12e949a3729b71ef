"""Image networks on 3 × 224 × 224 inputs, 1,000 classes."""

from surrogate.collect.networks import INCEPTION_V1, MOBILENET_V2, POOL_BEFORE
from surrogate.network.architectures.builder import Builder, Value

CLASSES = 1000


def _image(b: Builder, n: int) -> Value:
    return b.image("image", (n, 3, 224, 224))


def _unit(
    b: Builder, x: Value, k: int, r: int, *, stride: int = 1, groups: int = 1, act: str = "relu"
) -> Value:
    """Convolution, batch norm, and an activation (none where ``act`` is empty)."""
    x = b.batch_norm(b.conv(x, k, r, stride=stride, groups=groups))
    return b.activate(act, x) if act else x


def _head(b: Builder, x: Value, widths: tuple[int, ...]) -> Value:
    for width in widths:
        x = b.activate("relu", b.linear(x, width))
    return b.linear(x, CLASSES)


def alexnet(b: Builder, n: int) -> Value:
    """Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014): the one-tower form."""
    x = b.activate("relu", b.conv(_image(b, n), 64, 11, stride=4, pad=2, bias=True))
    x = b.pool("max", x, 3, stride=2)
    x = b.pool("max", b.activate("relu", b.conv(x, 192, 5, bias=True)), 3, stride=2)
    for k in (384, 256, 256):
        x = b.activate("relu", b.conv(x, k, 3, bias=True))
    return _head(b, b.flatten(b.pool("max", x, 3, stride=2)), (4096, 4096))


def vgg(b: Builder, n: int, repeats: tuple[int, ...]) -> Value:
    """Simonyan and Zisserman (2015), table 1, columns D and E."""
    x = _image(b, n)
    for k, count in zip((64, 128, 256, 512, 512), repeats, strict=True):
        for _ in range(count):
            x = b.activate("relu", b.conv(x, k, 3, bias=True))
        x = b.pool("max", x, 2, stride=2)
    return _head(b, b.flatten(x), (4096, 4096))


def inception_v1(b: Builder, n: int) -> Value:
    """Szegedy et al. (2015), table 1, without the auxiliary classifiers."""

    def conv(x: Value, k: int, r: int, stride: int = 1) -> Value:
        return b.activate("relu", b.conv(x, k, r, stride=stride, bias=True))

    x = b.activate("lrn", b.pool("max", conv(_image(b, n), 64, 7, 2), 3, stride=2, ceil=True))
    x = b.pool("max", b.activate("lrn", conv(conv(x, 64, 1), 192, 3)), 3, stride=2, ceil=True)
    for index, (one, reduce3, three, reduce5, five, pooled) in enumerate(INCEPTION_V1):
        if index in POOL_BEFORE:
            x = b.pool("max", x, 3, stride=2, ceil=True)
        branches = [
            conv(x, one, 1),
            conv(conv(x, reduce3, 1), three, 3),
            conv(conv(x, reduce5, 1), five, 5),
            conv(b.pool("max", x, 3, stride=1, pad=1), pooled, 1),
        ]
        x = b.concat(branches)
    return _head(b, b.flatten(x, average=True), ())


def resnet(b: Builder, n: int, repeats: tuple[int, ...], wide: bool = True) -> Value:
    """He et al. (2016), table 1: 1×1–3×3–1×1 bottlenecks (``wide``; stride in the 3×3) or pairs of 3×3."""
    x = b.pool("max", _unit(b, _image(b, n), 64, 7, stride=2), 3, stride=2, pad=1)
    for stage, count in enumerate(repeats):
        k = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            out = 4 * k if wide else k
            shortcut = x
            if stride > 1 or b.shape(x)[1] != out:
                shortcut = _unit(b, x, out, 1, stride=stride, act="")
            if wide:
                y = _unit(b, _unit(b, x, k, 1), k, 3, stride=stride)
                y = _unit(b, y, out, 1, act="")
            else:
                y = _unit(b, _unit(b, x, k, 3, stride=stride), out, 3, act="")
            x = b.activate("relu", b.add(y, shortcut))
    return _head(b, b.flatten(x, average=True), ())


def mobilenet_v2(b: Builder, n: int) -> Value:
    """Sandler et al. (2018), table 2, width 1.0."""
    x = _unit(b, _image(b, n), 32, 3, stride=2, act="relu6")
    for expansion, k, count, stride in MOBILENET_V2:
        for block in range(count):
            c = b.shape(x)[1]
            step = 1 if block else stride
            y = _unit(b, x, expansion * c, 1, act="relu6") if expansion > 1 else x
            y = _unit(b, y, expansion * c, 3, stride=step, groups=expansion * c, act="relu6")
            y = _unit(b, y, k, 1, act="")
            x = b.add(x, y) if step == 1 and c == k else y
    return _head(b, b.flatten(_unit(b, x, 1280, 1, act="relu6"), average=True), ())


def densenet121(b: Builder, n: int) -> Value:
    """Huang et al. (2017), table 1, growth 32: batch norm and ReLU before each convolution."""

    def before(x: Value, k: int, r: int) -> Value:
        return b.conv(b.activate("relu", b.batch_norm(x)), k, r)

    x = b.pool("max", _unit(b, _image(b, n), 64, 7, stride=2), 3, stride=2, pad=1)
    for stage, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            x = b.concat([x, before(before(x, 128, 1), 32, 3)])
        if stage < 3:
            x = b.pool("average", before(x, b.shape(x)[1] // 2, 1), 2, stride=2)
    return _head(b, b.flatten(b.activate("relu", b.batch_norm(x)), average=True), ())
