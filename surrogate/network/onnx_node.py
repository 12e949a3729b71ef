"""`Node`: one node of an ONNX graph with the shapes of its tensors, as the operators' functions ask for them."""

from dataclasses import dataclass
from math import prod
from typing import Any

from surrogate.network.network import Layer, Work
from surrogate.network.tensor import Shape, Tensor, UnsupportedError, gradients


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a graph: ``proto`` holds its attributes; ``constant``: computed from constants alone."""

    op: str
    domain: str
    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    proto: Any
    constant: bool = False

    def shape(self, index: int) -> Shape:
        """The shape of an input. Raises `UnsupportedError` where it is missing or unknown."""
        if index >= len(self.inputs) or self.inputs[index].shape is None:
            raise UnsupportedError("shape unknown")
        return self.inputs[index].shape or ()

    def result(self, index: int = 0, *, rank: int | None = None) -> Shape:
        """The shape of an output. Raises `UnsupportedError` where it is unknown or has not ``rank`` sizes."""
        if index >= len(self.outputs) or self.outputs[index].shape is None:
            raise UnsupportedError("shape unknown")
        made = self.outputs[index].shape or ()
        if rank is not None and len(made) != rank:
            raise UnsupportedError(f"a result of {len(made)} sizes where {rank} are due")
        return made

    def has(self, index: int) -> bool:
        """True where the optional input is there."""
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def ints(self, name: str, default: Shape) -> Shape:
        """An attribute that is a list of integers."""
        return next((tuple(a.ints) for a in self.proto.attribute if a.name == name and len(a.ints)), default)

    def number(self, name: str, default: int) -> int:
        """An attribute that is an integer."""
        return next((a.i for a in self.proto.attribute if a.name == name), default)

    def text(self, name: str) -> str:
        """An attribute that is a text, or nothing."""
        return next((a.s.decode("utf-8", "replace") for a in self.proto.attribute if a.name == name), "")

    @property
    def dtype(self) -> str:
        """The element type of the first input."""
        return self.inputs[0].dtype if self.inputs else "fp32"

    def layer(self, work: Work, *, part: str = "", weights: tuple[int, ...] = ()) -> Layer:
        """A layer of this node; ``weights`` are the inputs that may be trained."""
        parameters = sum(
            prod(self.inputs[i].shape or ())
            for i in weights
            if i < len(self.inputs) and self.inputs[i].parameter
        )
        weight = self.inputs[weights[0]] if weights and weights[0] < len(self.inputs) else None
        found = gradients(self.inputs[0], weight) if self.inputs else ()
        name = f"{self.name}.{part}" if part else self.name
        return Layer(name, self.op if not part else f"{self.op}.{part}", work, found, parameters)
