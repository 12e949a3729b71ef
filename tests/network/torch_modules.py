"""Torch modules as ``seer network`` asks for them: each function returns (module, inputs) at a batch size."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _of_torchvision(name: str, batch: int = 1) -> Built:
    import torchvision

    return torchvision.models.get_model(name), (torch.zeros(batch, 3, 224, 224),)


def __getattr__(name: str) -> Callable[..., Built]:
    """A network of torchvision by its name there."""
    if name.startswith("_"):
        raise AttributeError(name)
    return partial(_of_torchvision, name)


def _perceptron(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())))


class Dlrm(nn.Module):
    """Naumov et al. (2019): dense features, bags of 32 rows of eight tables, pairwise products, a perceptron on top."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = _perceptron(13, 512, 256, 64)
        self.tables = nn.ModuleList(nn.EmbeddingBag(100_000, 64, mode="sum") for _ in range(8))
        self.top = nn.Sequential(_perceptron(64 + 81, 512, 256), nn.Linear(256, 1), nn.Sigmoid())

    def forward(self, dense: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
        """The probability of a click."""
        dense = self.dense(dense)
        bags = [table(each) for table, each in zip(self.tables, indices, strict=True)]
        rows = torch.stack([dense, *bags], 1)
        return self.top(torch.cat([dense, (rows @ rows.transpose(1, 2)).flatten(1)], 1))


def dlrm(batch: int = 1) -> Built:
    """As the graph of that name has it."""
    return Dlrm(), (torch.zeros(batch, 13), *torch.zeros(8, batch, 32, dtype=torch.int64))


def transformer(batch: int = 1) -> Built:
    """Vaswani et al. (2017), section 3: six encoder blocks of width 512 with 8 heads, on 128 tokens."""
    block = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, activation="gelu", batch_first=True)
    module = nn.Sequential(nn.Embedding(32_000, 512), nn.TransformerEncoder(block, 6))
    return module, (torch.zeros(batch, 128, dtype=torch.int64),)


class Mixed(nn.Module):
    """Operators that autocast runs in half precision, in fp32, and as their inputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3)
        self.linear = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolution, product, norm, attention over one head, softmax."""
        x = functional.relu(self.conv(x)).flatten(2).transpose(1, 2)
        x = functional.gelu(self.norm(self.linear(x)))
        x = x.unsqueeze(1).half()
        return functional.softmax(functional.scaled_dot_product_attention(x, x, x), -1)


def mixed(batch: int = 2) -> Built:
    """The module and its input."""
    return Mixed(), (torch.empty(batch, 8, 10, 10),)
