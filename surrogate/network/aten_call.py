"""One call of an ATen operator, as a recording or an exported program tells it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from surrogate.network.network import Layer, Work
from surrogate.network.tensor import Shape, Tensor, UnsupportedError, gradients


@dataclass(frozen=True, slots=True)
class Call:
    """One call: ``op`` without overload, ``arguments`` by name (a `Tensor`, a number, a list, None), its results."""

    op: str
    name: str
    arguments: Mapping[str, Any]
    outputs: tuple[Tensor, ...] = ()

    def tensor(self, *names: str) -> Tensor:
        """The first of these arguments that is a tensor of known shape. Raises `UnsupportedError` for none."""
        for name in names:
            value = self.arguments.get(name)
            if isinstance(value, Tensor):
                if value.shape is None:
                    raise UnsupportedError("shape unknown")
                return value
        raise UnsupportedError(f"no {names[0]}")

    def shape(self, *names: str) -> Shape:
        """The shape of `tensor`."""
        return self.tensor(*names).shape or ()

    def result(self, index: int = 0) -> Shape:
        """The shape of a result."""
        if index >= len(self.outputs) or self.outputs[index].shape is None:
            raise UnsupportedError("shape unknown")
        return self.outputs[index].shape or ()

    def pair(self, name: str, default: int, rank: int = 2) -> Shape:
        """A list of ``rank`` integers; one number stands for all."""
        value = self.arguments.get(name)
        if value is None or value == []:
            return (default,) * rank
        numbers = tuple(value) if isinstance(value, list | tuple) else (value,)
        numbers = numbers * rank if len(numbers) == 1 else numbers
        if len(numbers) != rank or not all(type(number) is int for number in numbers):
            raise UnsupportedError(f"{name} unknown")
        return numbers

    def tensors(self) -> list[Tensor]:
        """Every tensor among the arguments, in order, lists opened."""
        found: list[Tensor] = []
        for value in self.arguments.values():
            found += [
                v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, Tensor)
            ]
        return found

    @property
    def dtype(self) -> str:
        """The element type of the first tensor, or of the result."""
        return next((tensor.dtype for tensor in (*self.tensors(), *self.outputs)), "fp32")

    def layer(self, work: Work, *, part: str = "", data: str = "", weight: str = "") -> Layer:
        """A layer of this call; ``data`` and ``weight`` are the arguments that gradients may flow into."""
        tensors = self.tensors()
        source = self.arguments.get(data) if data else next((t for t in tensors if not t.parameter), None)
        trained = self.arguments.get(weight) if weight else None
        found = gradients(
            source if isinstance(source, Tensor) else Tensor(),
            trained if isinstance(trained, Tensor) else None,
        )
        weights = sum(prod(t.shape or ()) for t in tensors if t.parameter)
        name = f"{self.name}.{part}" if part else self.name
        operator = f"{self.op}.{part}" if part else self.op
        return Layer(name, operator, work, found, 0 if part else weights)


Layers = Iterator[Layer]
