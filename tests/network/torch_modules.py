"""Torch modules for ``seer network``: each function returns (module, inputs) at a batch size."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _of_torchvision(name: str, batch: int = 1) -> Built:
    import torchvision

    return torchvision.models.get_model(name), (_images(batch),)


def __getattr__(name: str) -> Callable[..., Built]:
    """Return the function of a network by its name in torchvision."""
    if name.startswith("_"):
        raise AttributeError(name)
    return partial(_of_torchvision, name)


def _images(batch: int) -> torch.Tensor:
    return torch.zeros(batch, 3, 224, 224)


def _features(channels: int, *layers: tuple[int, int, int, int] | str) -> nn.Sequential:
    """Return convolutions (filters, size, stride, padding) with ReLU; a text is the window of a pooling by 2."""
    modules: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, str):
            modules.append(nn.MaxPool2d(int(layer), 2))
            continue
        filters, size, stride, padding = layer
        modules += [nn.Conv2d(channels, filters, size, stride, padding), nn.ReLU()]
        channels = filters
    return nn.Sequential(*modules, nn.Flatten())


def alexnet(batch: int = 1) -> Built:
    """Return AlexNet with the widths of one of two GPUs: Krizhevsky (2014), "One weird trick"."""
    windows = [(192, 5, 1, 2), "3", (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1), "3"]
    features = _features(3, (64, 11, 4, 2), "3", *windows)
    return nn.Sequential(features, _perceptron(256 * 36, 4096, 4096, 1000)), (_images(batch),)


def vgg19(batch: int = 1) -> Built:
    """Return VGG-19: Simonyan and Zisserman (2015), column E."""
    blocks = [[(width, 3, 1, 1)] * count + ["2"] for width, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))]
    features = _features(3, *(layer for block in blocks for layer in block))
    return nn.Sequential(features, _perceptron(512 * 49, 4096, 4096, 1000)), (_images(batch),)


class Bottleneck(nn.Module):
    """A block of 1 × 1, 3 × 3 and 1 × 1 convolutions with a shortcut: He et al. (2016); the 3 × 3 has the stride."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        sizes = ((channels, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        parts = [_normed(*size) for size in sizes]
        self.convs = nn.Sequential(parts[0], nn.ReLU(), parts[1], nn.ReLU(), parts[2])
        self.shortcut = _normed(channels, 4 * width, 1, stride) if channels != 4 * width else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output, with half the height and width if the stride is 2."""
        return functional.relu(self.convs(x) + self.shortcut(x))


def _normed(channels: int, filters: int, size: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(channels, filters, size, stride, size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(filters))


def resnet50(batch: int = 1) -> Built:
    """Return ResNet-50: He et al. (2016), table 1."""
    blocks, channels = [], 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(count):
            blocks.append(Bottleneck(channels, width, stride=2 if number == 0 and width > 64 else 1))
            channels = 4 * width
    stem = nn.Sequential(_normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
    return nn.Sequential(stem, *blocks, head), (_images(batch),)


def _perceptron(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())))


class Dlrm(nn.Module):
    """Dense features, bags of 32 rows of eight tables, pairwise products and a perceptron: Naumov et al. (2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = _perceptron(13, 512, 256, 64)
        self.tables = nn.ModuleList(nn.EmbeddingBag(100_000, 64, mode="sum") for _ in range(8))
        self.top = nn.Sequential(_perceptron(64 + 81, 512, 256), nn.Linear(256, 1), nn.Sigmoid())

    def forward(self, dense: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
        """Return the probability of a click."""
        dense = self.dense(dense)
        bags = [table(rows) for table, rows in zip(self.tables, indices, strict=True)]
        rows = torch.stack([dense, *bags], 1)
        return self.top(torch.cat([dense, (rows @ rows.transpose(1, 2)).flatten(1)], 1))


def dlrm(batch: int = 1) -> Built:
    """Return DLRM with the sizes of the shipped graph."""
    return Dlrm(), (torch.zeros(batch, 13), *torch.zeros(8, batch, 32, dtype=torch.int64))


def transformer(batch: int = 1) -> Built:
    """Return six encoder blocks of width 512 with 8 heads, on 128 tokens: Vaswani et al. (2017), section 3."""
    block = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, activation="gelu", batch_first=True)
    module = nn.Sequential(nn.Embedding(32_000, 512), nn.TransformerEncoder(block, 6))
    return module, (torch.zeros(batch, 128, dtype=torch.int64),)


class Mixed(nn.Module):
    """Operators that autocast runs in half precision, in fp32, or in the type of their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3)
        self.linear = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the softmax of attention over one head, after a convolution, a product and a norm."""
        x = functional.relu(self.conv(x)).flatten(2).transpose(1, 2)
        x = functional.gelu(self.norm(self.linear(x)))
        x = x.unsqueeze(1).half()
        return functional.softmax(functional.scaled_dot_product_attention(x, x, x), -1)


def mixed(batch: int = 2) -> Built:
    """Return `Mixed` and its input."""
    return Mixed(), (torch.empty(batch, 8, 10, 10),)


class Tied(nn.Module):
    """An embedding whose weights are the last product's, and a convolution that two parts share."""

    def __init__(self, *, has_values: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embedding.weight
        self.sizes = torch.tensor([-1, 8, 64])
        self.scale = torch.linspace(0, 1, 5)[2].item() if has_values else 0.5  # fails without memory
        convolution = nn.Conv1d(8, 8, 3, padding=1)
        self.parts = nn.ModuleList([nn.Sequential(convolution, nn.ReLU()), convolution])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of 8 tokens."""
        values = self.embedding(tokens) * self.scale
        return self.head(self.parts[1](self.parts[0](values.reshape(*self.sizes.tolist()))))


def tied(batch: int = 4) -> Built:
    """Return a module that is built without memory, and converted."""
    return Tied().to(torch.bfloat16), (torch.zeros(batch, 8, dtype=torch.int64),)


def tied_with_values(batch: int = 4) -> Built:
    """Return a module whose constructor needs values, so that it is built with memory."""
    return Tied(has_values=True).to(torch.bfloat16), (torch.zeros(batch, 8, dtype=torch.int64),)


def bags(batch: int = 2048) -> Built:
    """Return bags of 32 rows; the first size of the first input is not the batch."""
    return nn.EmbeddingBag(10_000, 64), (torch.zeros(32 * batch, dtype=torch.int64), torch.arange(0, 32 * batch, 32))
