"""Optimizers: the states that they store for each weight, and the kernels of their step.

Sources: Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023) for Lion. Shazeer and Stern, "Adafactor"
(2018). Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2022). Jordan et al., "Muon" (2024). The
code of PyTorch, of transformers (Adafactor) and of bitsandbytes (8-bit Adam).
"""

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from surrogate.features import DTYPES, check_choice
from surrogate.features.families.operator import Streamed
from surrogate.network.network import TEXTS, Layer, NetworkBuilder
from surrogate.network.operators import gemm

SCALE_BYTES = 4 / 256
"""Bytes of scales per 8-bit value: bitsandbytes has one fp32 scale for 256 values."""
MIN_8BIT_SIZE = 4096
"""Minimum size of a weight with states in 8 bits (bitsandbytes, ``min_8bit_size``)."""
ORTHOGONAL_STEPS = 5
"""Newton-Schulz iterations of Muon (PyTorch, ``torch.optim.Muon``, ``ns_steps``)."""
LAST_OPERATOR = "lm_head"
"""The last product of a language model, which Muon leaves to Adam."""
STEP_TEXTS = {"factors": "as transformers runs it", "matrices": "Muon for inner matrices, fused Adam for the rest"}
"""Form of an optimizer's states → text of a note on its step; all other steps are one fused pass."""


class Optimizer(NamedTuple):
    """What an optimizer stores and moves per weight.

    ``states`` is the number of stored values in the weight's type, and ``work`` the number of operations per written
    value. The step moves ``reads`` and ``writes`` values, and reads and writes the states.

    ``states_of`` names another form of states. In "bytes", they have 8 bits and scales. In "factors", a matrix has an
    fp32 value per row and per column. In "matrices", an inner matrix has one value less.
    """

    states: int
    work: int
    reads: int = 2
    writes: int = 1
    states_of: str = ""


OPTIMIZERS = {name: Optimizer(**fields) for name, fields in TEXTS["optimizers"].items()}
OPTIMIZER = "adam"
"""The default optimizer."""


def step_text(optimizer: str) -> str:
    """Return an optimizer's name, and how its step runs."""
    text = STEP_TEXTS.get(OPTIMIZERS[optimizer].states_of, "fused: one pass over all trained weights")
    return f"{optimizer} ({text})"


class TrainedWeight(NamedTuple):
    """The shape of a trained weight; ``is_inner`` is False for embeddings and for a model's last matrix."""

    shape: tuple[int, ...]
    is_inner: bool = True

    def state_bytes(self, optimizer: str, itemsize: int) -> float:
        """Return the bytes of an optimizer's states for the weight; its values have ``itemsize`` bytes."""
        size, (states, *_, states_of) = prod(self.shape), OPTIMIZERS[optimizer]
        if states_of == "bytes":
            return states * size * (1 + SCALE_BYTES if size >= MIN_8BIT_SIZE else 4)
        if states_of == "factors" and len(self.shape) > 1:
            return 4 * size * (1 / self.shape[-1] + 1 / self.shape[-2])
        return (states - (states_of == "matrices" and self.is_matrix)) * size * itemsize

    @property
    def is_matrix(self) -> bool:
        """Whether Muon updates the weight."""
        return self.is_inner and len(self.shape) == 2


def trained_weights(layers: Iterable[Layer]) -> Iterator[TrainedWeight]:
    """Yield the weights of a forward pass; a layer's weights are matrices with the width of its problem."""
    for layer in layers:
        widths = (getattr(layer.problem, name, 0) for name in ("k", "hidden", "dim"))
        width = next(filter(None, widths), 0)
        has_bias = layer.parameters % (width + 1) == 0  # a product's bias has a value per row
        rows = layer.parameters // (width + has_bias) if width else 0
        rest = layer.parameters - rows * width
        is_inner = bool(getattr(layer.problem, "MULTIPLIES", False)) and layer.operator != LAST_OPERATOR
        yield from [TrainedWeight((rows, width), is_inner)] if rows else []
        yield from [TrainedWeight((rest,))] if rest else []


def add_step(builder: NetworkBuilder, weights: Sequence[TrainedWeight], optimizer: str, dtype: str) -> int:
    """Add the kernels of one step over weights of type ``dtype``, and return the bytes of the optimizer's states.

    Raises `InputError` if the optimizer is unknown.
    """
    check_choice("optimizer", optimizer, OPTIMIZERS)
    builder.add(optimizer_step(weights, optimizer, dtype))
    return total_state_bytes(weights, optimizer, dtype)


def total_state_bytes(weights: Iterable[TrainedWeight], optimizer: str, dtype: str) -> int:
    """Return the bytes of an optimizer's states for weights of type ``dtype``."""
    return round(sum(weight.state_bytes(optimizer, DTYPES[dtype]) for weight in weights))


def optimizer_step(weights: Sequence[TrainedWeight], optimizer: str, dtype: str = "fp32") -> Iterator[Layer]:
    """Yield the kernels of one step over all weights: one pass, and the products of Muon; none without weights."""
    parameters = sum(prod(weight.shape) for weight in weights)
    if not parameters:
        return
    _, work, reads, writes, _ = OPTIMIZERS[optimizer]
    moved = -(-total_state_bytes(weights, optimizer, dtype) // DTYPES[dtype])
    values_read, values_written = reads * parameters + moved, writes * parameters + moved
    step = Streamed(reads=values_read, writes=values_written, work=work, dtype=dtype, variant=optimizer)
    yield Layer("optimizer", optimizer, step, parameters=parameters)
    for weight in weights if OPTIMIZERS[optimizer].states_of == "matrices" else ():
        if weight.is_matrix:
            m, n = sorted(weight.shape)
            products = {"gram": (m, m, n), "square": (m, m, m), "update": (m, n, m)}
            for name, product in products.items():
                layer = Layer(f"optimizer.{name}", f"{optimizer}.{name}", gemm(*product, dtype="bf16"))
                yield from [layer] * ORTHOGONAL_STEPS
