"""`InNetwork`: what a whole network asks of a problem, whatever its family, with the answers that most problems give.

A family whose problems differ says so in its own class (`Conv`, `Gemm`, `EmbeddingBag`); nothing else needs to know.
"""

from typing import Any, ClassVar, Self

INPUT = "input"
WEIGHT = "weight"
"""What a gradient is taken of."""
STREAMED = "streamed"
"""The kind of a pass over memory of which only the traffic is known; it is of no family."""
Gradients = tuple[tuple[str, Any], ...]
"""Parts of a backward pass: a name and the problem that it computes."""


class InNetwork:
    """A problem as a layer computes it: its batch, its weights, and what its backward pass launches."""

    __slots__ = ()

    HAS_ALGORITHMS: ClassVar[bool] = False
    """True where a library offers several algorithms, each with a workspace of its own, and one is to be chosen."""
    GRADIENT: ClassVar[tuple[str, ...]] = ()
    """The kinds of operators, of the same sizes, that compute the gradient of its input; none where that passes through
    as it is. `STREAMED` reads the input and the result's gradient and writes the input's."""
    WEIGHT_GRADIENT: ClassVar[str] = ""
    """The kind, of the same sizes, that computes the gradient of weights that it adds; empty where it adds none."""
    UPDATES_WEIGHTS: ClassVar[bool] = False
    """True where the gradient's kernel changes the weights that it touches itself: no optimizer's step follows."""
    IN_TRAINING: ClassVar[str] = ""
    """The kind, of the same sizes, that runs in its place in training; empty where it runs itself."""

    @property
    def samples(self) -> int | None:
        """The size that is the network's batch; None where no size is that for certain."""
        return None

    @property
    def weights(self) -> int:
        """Elements of the weights that it multiplies by; 0 where it has none."""
        return 0

    @property
    def multiply_adds(self) -> int:
        """Its part of a network's multiply-adds, which count convolutions, products and attention."""
        return 0

    @property
    def is_gradient(self) -> bool:
        """True where the problem itself says that it is a gradient: such a one has no backward pass."""
        return False

    def at_batch(self, old: int, new: int) -> Self | None:
        """The problem at batch ``new`` where its batch is ``old``, or several times that.

        None where several sizes may be the batch. Raises `InputError` for a size out of range.
        """
        return None

    def gradients(self, of: str) -> Gradients:
        """The parts of the backward pass that give the gradient of its `INPUT` or its `WEIGHT`."""
        return ()

    def stand_ins(self) -> tuple[Any, ...]:
        """The problem itself, then those whose measurements may stand in for its own, nearest first."""
        return (self,)
