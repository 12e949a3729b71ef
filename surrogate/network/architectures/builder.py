"""`Builder`: the steps that a network is described in; one backend writes ONNX nodes, another runs torch."""

from typing import Any, Protocol

Value = Any
"""A tensor of the backend."""


class Builder(Protocol):
    """Every step returns the new tensor; ``shape`` tells its sizes."""

    def shape(self, x: Value) -> tuple[int, ...]:
        """Sizes of a tensor."""
        ...

    def image(self, name: str, shape: tuple[int, ...]) -> Value:
        """An input of numbers."""
        ...

    def indices(self, name: str, shape: tuple[int, ...]) -> Value:
        """An input of int64 indices."""
        ...

    def conv(
        self,
        x: Value,
        k: int,
        r: int,
        *,
        stride: int = 1,
        pad: int | None = None,
        groups: int = 1,
        bias: bool = False,
    ) -> Value:
        """A convolution to ``k`` channels by r × r filters; padding defaults to (r − 1) / 2."""
        ...

    def batch_norm(self, x: Value) -> Value:
        """Batch norm over the channels."""
        ...

    def layer_norm(self, x: Value) -> Value:
        """Layer norm over the last dimension."""
        ...

    def activate(self, kind: str, x: Value) -> Value:
        """Elementwise: relu, relu6, gelu, sigmoid; softmax along the last dimension; lrn across five channels."""
        ...

    def add(self, a: Value, b: Value) -> Value:
        """a + b."""
        ...

    def scale(self, x: Value, factor: float) -> Value:
        """x · factor."""
        ...

    def concat(self, parts: list[Value], axis: int = 1) -> Value:
        """Tensors side by side."""
        ...

    def pool(self, kind: str, x: Value, r: int, *, stride: int, pad: int = 0, ceil: bool = False) -> Value:
        """``max`` or ``average`` over r × r windows."""
        ...

    def flatten(self, x: Value, *, average: bool = False) -> Value:
        """(n, everything else); ``average`` takes the mean of each channel's image first."""
        ...

    def linear(self, x: Value, n: int) -> Value:
        """Fully connected to ``n`` features, with bias."""
        ...

    def matmul(self, a: Value, b: Value) -> Value:
        """Batched matrix product."""
        ...

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        """The same elements in another shape."""
        ...

    def transpose(self, x: Value, order: tuple[int, ...]) -> Value:
        """Dimensions in another order."""
        ...

    def lookup(self, indices: Value, rows: int, dim: int, *, summed: bool = False) -> Value:
        """Rows of a table; ``summed`` over the last dimension of the indices."""
        ...
