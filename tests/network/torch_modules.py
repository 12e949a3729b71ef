"""The architectures as torch modules: each function returns (module, inputs) at a batch size, as ``seer network`` asks.

One class runs the description step by step; layers with weights are made once, as submodules.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from tests.network.architectures import ARCHITECTURES

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Described(nn.Module):
    """A network of `ARCHITECTURES`; ``forward`` takes the inputs in the order in which it names them."""

    def __init__(self, name: str, batch: int) -> None:
        super().__init__()
        self._describe = ARCHITECTURES[name]
        self._batch = batch
        self._given: list[torch.Tensor] = []
        self._count: Counter[str] = Counter()
        self.inputs: list[torch.Tensor] = []
        with torch.no_grad():
            self._describe(self, batch)  # makes the submodules
        self._given = []

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The description, step by step."""
        self._given = list(inputs)
        self._count.clear()
        return self._describe(self, self._batch)  # type: ignore[return-value]

    def shape(self, x: torch.Tensor) -> tuple[int, ...]:
        """Sizes of a tensor."""
        return tuple(x.shape)

    def image(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The next input, or while the network is made an empty one."""
        return self._next(shape, torch.float32)

    def indices(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The next input, or zeros."""
        return self._next(shape, torch.int64)

    def conv(
        self,
        x: torch.Tensor,
        k: int,
        r: int,
        *,
        stride: int = 1,
        pad: int | None = None,
        groups: int = 1,
        bias: bool = False,
    ) -> torch.Tensor:
        """nn.Conv2d."""
        pad = (r - 1) // 2 if pad is None else pad
        make = nn.Conv2d
        return self._layer("conv", x, lambda: make(x.shape[1], k, r, stride, pad, groups=groups, bias=bias))

    def batch_norm(self, x: torch.Tensor) -> torch.Tensor:
        """nn.BatchNorm2d."""
        return self._layer("bn", x, lambda: nn.BatchNorm2d(x.shape[1]))

    def layer_norm(self, x: torch.Tensor) -> torch.Tensor:
        """nn.LayerNorm over the last dimension."""
        return self._layer("norm", x, lambda: nn.LayerNorm(x.shape[-1]))

    def activate(self, kind: str, x: torch.Tensor) -> torch.Tensor:
        """Elementwise steps by name; softmax along the last dimension; lrn across five channels."""
        if kind == "softmax":
            return functional.softmax(x, -1)
        if kind == "lrn":
            return functional.local_response_norm(x, 5)
        return torch.sigmoid(x) if kind == "sigmoid" else getattr(functional, kind)(x)

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a + b."""
        return a + b

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """x · factor."""
        return x * factor

    def concat(self, parts: list[torch.Tensor], axis: int = 1) -> torch.Tensor:
        """torch.cat."""
        return torch.cat(parts, axis)

    def pool(
        self, kind: str, x: torch.Tensor, r: int, *, stride: int, pad: int = 0, ceil: bool = False
    ) -> torch.Tensor:
        """Windows of r × r."""
        pooled = functional.max_pool2d if kind == "max" else functional.avg_pool2d
        return pooled(x, r, stride, pad, ceil_mode=ceil)

    def flatten(self, x: torch.Tensor, *, average: bool = False) -> torch.Tensor:
        """(n, everything else)."""
        return torch.flatten(functional.adaptive_avg_pool2d(x, 1) if average else x, 1)

    def linear(self, x: torch.Tensor, n: int) -> torch.Tensor:
        """nn.Linear."""
        return self._layer("linear", x, lambda: nn.Linear(x.shape[-1], n))

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a @ b."""
        return a @ b

    def reshape(self, x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """The same elements in another shape."""
        return x.reshape(shape)

    def transpose(self, x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
        """permute."""
        return x.permute(order)

    def lookup(self, indices: torch.Tensor, rows: int, dim: int, *, summed: bool = False) -> torch.Tensor:
        """nn.Embedding, or nn.EmbeddingBag where rows are summed."""
        if summed:
            return self._layer("bag", indices, lambda: nn.EmbeddingBag(rows, dim, mode="sum"))
        return self._layer("embedding", indices, lambda: nn.Embedding(rows, dim))

    def _next(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self._given:
            return self._given.pop(0)
        made = torch.zeros(shape, dtype=dtype)
        self.inputs.append(made)
        return made

    def _layer(self, kind: str, x: torch.Tensor, make: Callable[[], nn.Module]) -> torch.Tensor:
        """The next submodule of this kind, made when it is first met."""
        self._count[kind] += 1
        name = f"{kind}{self._count[kind]}"
        if not hasattr(self, name):
            self.add_module(name, make())
        return getattr(self, name)(x)


def build(name: str, batch: int = 1) -> Built:
    """The module and its inputs."""
    module = Described(name, batch)
    inputs = tuple(module.inputs)
    module.inputs = []
    return module, inputs


def __getattr__(name: str) -> Callable[..., Built]:
    """The function that builds an architecture: ``torch_modules.resnet50(batch=8)``."""
    if name not in ARCHITECTURES:
        raise AttributeError(f"no architecture {name!r}; known: {', '.join(ARCHITECTURES)}")
    return partial(build, name)


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


def mixed(batch: int = 2) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The module and its input."""
    return Mixed(), (torch.empty(batch, 8, 10, 10),)
