"""Well-known networks without their weights, described once and built as torch modules.

The graphs of `surrogate.bundled.NETWORKS` were written from the same descriptions.

A description takes a builder and a batch size and goes from step to step: ``image`` and ``indices`` are inputs, then
come ``conv`` (padding defaults to (r − 1) / 2), ``batch_norm``, ``layer_norm`` (last dimension), ``activate`` (relu,
relu6, gelu, sigmoid; softmax along the last dimension; lrn across five channels), ``add``, ``scale``, ``concat``,
``pool``, ``flatten`` (``average``: of each channel's mean), ``linear`` with bias, ``matmul``, ``reshape``,
``transpose`` and ``lookup`` in a table of rows (``summed`` over the last dimension of the indices). Every step returns
the new tensor, ``shape`` tells its sizes. `torch_modules.Described` is the builder.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Builder = Any
Value = Any
"""A tensor of the builder."""
CLASSES = 1000
INCEPTION_V1 = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128), (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip
"""1×1, 3×3 reduce, 3×3, 5×5 reduce, 5×5, pool projection: Szegedy et al. (2015), table 1, modules 3a … 5b."""
POOL_BEFORE = (2, 7)
"""Modules (4a and 5a) before which the image is halved."""
MOBILENET_V2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, channels, blocks, stride: Sandler et al. (2018), table 2."""
DLRM_TABLES, DLRM_ROWS, DLRM_DIM, DLRM_BAG = 8, 100_000, 64, 32
SEQUENCE, WIDTH, HEADS, BLOCKS, VOCABULARY = 128, 512, 8, 6, 32_000


def _image(b: Builder, n: int) -> Value:
    return b.image("image", (n, 3, 224, 224))


def _unit(b: Builder, x: Value, k: int, r: int, *, stride: int = 1, groups: int = 1, act: str = "relu") -> Value:
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
    for index, (single, reduce3, three, reduce5, five, pooled) in enumerate(INCEPTION_V1):
        if index in POOL_BEFORE:
            x = b.pool("max", x, 3, stride=2, ceil=True)
        branches = [
            conv(x, single, 1),
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


def _mlp(b: Builder, x: Value, widths: tuple[int, ...], last: str = "relu") -> Value:
    for index, width in enumerate(widths):
        x = b.activate(last if index == len(widths) - 1 else "relu", b.linear(x, width))
    return x


def dlrm(b: Builder, n: int) -> Value:
    """Naumov et al. (2019): dense features through an MLP, bags of embeddings, pairwise products, an MLP on top."""
    dense = _mlp(b, b.image("dense", (n, 13)), (512, 256, DLRM_DIM))
    parts = [b.reshape(dense, (n, 1, DLRM_DIM))]
    for table in range(DLRM_TABLES):
        bag = b.lookup(b.indices(f"table{table}", (n, DLRM_BAG)), DLRM_ROWS, DLRM_DIM, summed=True)
        parts.append(b.reshape(bag, (n, 1, DLRM_DIM)))
    rows = b.concat(parts)
    products = b.matmul(rows, b.transpose(rows, (0, 2, 1)))
    return _mlp(b, b.concat([dense, b.flatten(products)]), (512, 256, 1), last="sigmoid")


def transformer(b: Builder, n: int) -> Value:
    """Vaswani et al. (2017), section 3: six encoder blocks of width 512 with 8 heads, on 128 tokens."""
    x = b.lookup(b.indices("tokens", (n, SEQUENCE)), VOCABULARY, WIDTH)
    for _ in range(BLOCKS):
        x = b.layer_norm(b.add(x, _attention(b, x, n)))
        x = b.layer_norm(b.add(x, b.linear(b.activate("gelu", b.linear(x, 4 * WIDTH)), WIDTH)))
    return x


def _attention(b: Builder, x: Value, n: int) -> Value:
    """Multi-head self-attention without a mask."""
    head = WIDTH // HEADS

    def heads(order: tuple[int, ...]) -> Value:
        return b.transpose(b.reshape(b.linear(x, WIDTH), (n, SEQUENCE, HEADS, head)), order)

    query, key, value = heads((0, 2, 1, 3)), heads((0, 2, 3, 1)), heads((0, 2, 1, 3))
    weights = b.activate("softmax", b.scale(b.matmul(query, key), head**-0.5))
    mixed = b.transpose(b.matmul(weights, value), (0, 2, 1, 3))
    return b.linear(b.reshape(mixed, (n, SEQUENCE, WIDTH)), WIDTH)


ARCHITECTURES: Mapping[str, Callable[[Builder, int], object]] = {
    "alexnet": alexnet,
    "vgg16": partial(vgg, repeats=(2, 2, 3, 3, 3)),
    "vgg19": partial(vgg, repeats=(2, 2, 4, 4, 4)),
    "inception_v1": inception_v1,
    "resnet18": partial(resnet, repeats=(2, 2, 2, 2), wide=False),
    "resnet34": partial(resnet, repeats=(3, 4, 6, 3), wide=False),
    "resnet50": partial(resnet, repeats=(3, 4, 6, 3)),
    "resnet101": partial(resnet, repeats=(3, 4, 23, 3)),
    "resnet152": partial(resnet, repeats=(3, 8, 36, 3)),
    "resnet200": partial(resnet, repeats=(3, 24, 36, 3)),
    "mobilenet_v2": mobilenet_v2,
    "densenet121": densenet121,
    "dlrm": dlrm,
    "transformer": transformer,
}
"""Name → the function that builds it with a `Builder` at a batch size."""
