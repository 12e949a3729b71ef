"""Recurrent layers and cells of torch on fake tensors of the CPU, calling what a GPU would: cuDNN's fused kernels.

Source: PyTorch, `aten/src/ATen/native/RNN.cpp` (which of its functions call cuDNN) and `native_functions.yaml`.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""Layer → cuDNN's number of it."""


@cache
def overrides() -> dict[str, Callable[..., object]]:
    """Operator of ATen with its overload → what stands for it; also lets torch run cuDNN's own on fake tensors."""
    import torch

    fakes = {
        "_cudnn_rnn_backward": _fake_backward,
        "_thnn_fused_gru_cell": _fake_gru_cell,
        "_thnn_fused_gru_cell_backward": _fake_gru_cell_backward,
    }
    for name, fake in fakes.items():
        torch.library.register_fake(f"aten::{name}", fake)
    layers = {f"{name}.input": partial(_layers, mode) for name, mode in MODES.items()}
    packed = {f"{name}.data": partial(_packed_layers, mode) for name, mode in MODES.items()}
    return {**layers, **packed, "lstm_cell": _lstm_cell, "gru_cell": _gru_cell}


def _layers(
    mode: int,
    values: "Tensor",
    hx: "Tensor | list[Tensor]",
    params: "list[Tensor]",
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    sizes: tuple[int, ...] = (),
) -> tuple[object, ...]:
    """All layers of a recurrent network in one call; ``sizes``: sequences at each step of packed ones."""
    import torch

    states = list(hx) if isinstance(hx, list | tuple) else [hx]
    if torch.is_autocast_enabled("cpu"):
        half = torch.get_autocast_dtype("cpu")
        values, states, params = values.to(half), [state.to(half) for state in states], [p.to(half) for p in params]
    projected = len(params) // num_layers // (1 + bidirectional) > 2 + 2 * has_biases
    hidden = params[1].shape[0] // (1, 1, 4, 3)[mode]
    result = torch.ops.aten._cudnn_rnn(
        values,
        params,
        2 + 2 * has_biases + projected,
        values.new_empty(0),
        states[0],
        states[1] if mode == MODES["lstm"] else None,
        mode,
        hidden,
        params[1].shape[1] if projected else 0,
        num_layers,
        batch_first,
        dropout,
        train,
        bidirectional,
        list(sizes),
        None,
    )
    return result[:3] if mode == MODES["lstm"] else result[:2]


def _packed_layers(
    mode: int,
    data: "Tensor",
    batch_sizes: "Tensor",
    hx: "Tensor | list[Tensor]",
    params: "list[Tensor]",
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[object, ...]:
    """The same of packed sequences, whose lengths nobody knows without memory: all count as equally long."""
    steps = batch_sizes.shape[0]
    sizes = (-(-data.shape[0] // steps),) * steps
    return _layers(
        mode, data, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first=False, sizes=sizes
    )


def _lstm_cell(
    values: "Tensor",
    hx: "list[Tensor]",
    w_ih: "Tensor",
    w_hh: "Tensor",
    b_ih: "Tensor | None" = None,
    b_hh: "Tensor | None" = None,
) -> tuple[object, ...]:
    """Two products and one kernel for the rest."""
    import torch

    gates = values @ w_ih.t(), hx[0] @ w_hh.t()
    return torch.ops.aten._thnn_fused_lstm_cell(*gates, hx[1].to(gates[0].dtype), b_ih, b_hh)[:2]


def _gru_cell(
    values: "Tensor",
    hx: "Tensor",
    w_ih: "Tensor",
    w_hh: "Tensor",
    b_ih: "Tensor | None" = None,
    b_hh: "Tensor | None" = None,
) -> object:
    """The same of a GRU."""
    import torch

    gates = values @ w_ih.t(), hx @ w_hh.t()
    return torch.ops.aten._thnn_fused_gru_cell(*gates, hx.to(gates[0].dtype), b_ih, b_hh)[0]


def _fake_backward(values: "Tensor", weight: "list[Tensor]", *arguments: Any) -> tuple[object, ...]:
    """Shapes of `_cudnn_rnn_backward`: what it is a gradient of has the gradient's."""
    hx, cx, mask = arguments[2], arguments[3], arguments[-1]
    import torch

    like = [torch.empty_like(each) if each is not None else None for each in (values, hx, cx)]
    return (*like, [torch.empty_like(each) for each in weight] if mask[3] else [])


def _fake_gru_cell(input_gates: "Tensor", hidden_gates: "Tensor", hx: "Tensor", *biases: object) -> tuple[object, ...]:
    return hx.new_empty(hx.shape), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


def _fake_gru_cell_backward(grad_hy: "Tensor", workspace: "Tensor", has_bias: bool) -> tuple[object, ...]:
    batch, hidden = grad_hy.shape
    gates = [grad_hy.new_empty((batch, 3 * hidden)) for _ in range(2)]
    biases = [grad_hy.new_empty((3 * hidden,)) if has_bias else None for _ in range(2)]
    return (*gates, grad_hy.new_empty(grad_hy.shape), *biases)
