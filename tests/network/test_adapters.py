"""Frozen weights with adapters in torch modules, and packed weights of bitsandbytes."""

import pytest

torch = pytest.importorskip("torch")

from surrogate.network import time_module  # noqa: E402


class Adapted(torch.nn.Module):
    """A frozen product with an adapter of rank 16."""

    def __init__(self, base: torch.nn.Module) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = torch.nn.Linear(1024, 16, bias=False, dtype=torch.bfloat16)
        self.b = torch.nn.Linear(16, 4096, bias=False, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.b(self.a(x))


ADAPTER_WEIGHTS = 16 * (1024 + 4096)
TOKENS = torch.zeros(2048, 1024, dtype=torch.bfloat16, requires_grad=True)


def test_frozen_weights_have_neither_gradients_nor_states() -> None:
    """Three products go forward and three compute inputs' gradients; the two of the adapter have weights' gradients."""
    module = Adapted(torch.nn.Linear(1024, 4096, bias=False, dtype=torch.bfloat16))
    one, four = (time_module(module, TOKENS, "h100-sxm", training=True, accumulate=steps) for steps in (1, 4))
    assert sum(layer.operator == "mm" for layer in one.layers) == 3 + 3 + 2
    assert one.memory["state"] == 4 * ADAPTER_WEIGHTS
    assert one.parameters == 4096 * 1024 + ADAPTER_WEIGHTS
    products = [sum(layer.time_us for layer in time.layers if layer.operator == "mm") for time in (one, four)]
    assert products[1] == pytest.approx(4 * products[0])
    assert four.samples_per_s == pytest.approx(4 * 2048 / four.total_us * 1e6)


@pytest.mark.parametrize("amp", ["bf16", None])
def test_gpus_reduce_trained_weights_and_gather_all(amp: str | None) -> None:
    """One of five products of 64 MiB is trained: a copy has its buckets; a shard gathers two and reduces one."""
    module = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(5))).requires_grad_(False)
    module[0].requires_grad_(True)
    copy, shard = (
        time_module(module, torch.zeros(64, 4096), "h100-sxm", training=True, amp=amp, **{option: 8})
        for option in ("data_parallel", "fsdp")
    )
    mib = 2**20
    assert copy.memory["communication"] == (688 + 64) * mib
    assert (shard.memory["weights"], shard.memory["gradients"]) == (5 * 64 * mib // 8, 64 * mib // 8)
    assert shard.memory["communication"] == (688 + (2 + 1) * (32 if amp else 64)) * mib


def test_each_type_of_trained_weights_has_its_own_step() -> None:
    """The adapter's first part is in bf16 and its second in fp32: states of 2 · 2 and 2 · 4 bytes, and two passes."""
    module = Adapted(torch.nn.Linear(1024, 4096, bias=False, dtype=torch.bfloat16))
    module.b.float()
    alone, copy = (
        time_module(module, TOKENS, "h100-sxm", training=True, amp="bf16", data_parallel=gpus, accumulate=2)
        for gpus in (1, 8)
    )
    first, second = 16 * 1024, 16 * 4096
    assert alone.memory["state"] == 4 * first + 8 * second
    assert alone.memory["gradients"] == 2 * first + 4 * second
    assert copy.memory["communication"] == 688 * 2**20 + 2 * first + 4 * second
    values = {"adam": 7, "accumulation": 3}  # read and written by Adam, and by the sum of gradients
    for operator, count in values.items():
        moved = [layer.bytes for layer in alone.layers if layer.operator == operator]
        assert moved == [count * 2 * first, count * 4 * second]


def test_packed_weights_are_unpacked_in_both_passes() -> None:
    """4-bit weights of bitsandbytes: half a byte, and an fp32 scale for every 64 of them."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    settings = {"quant_type": "nf4", "compute_dtype": torch.bfloat16, "compress_statistics": False}
    module = Adapted(bitsandbytes.nn.Linear4bit(1024, 4096, bias=False, **settings).to(torch.bfloat16).to("cpu"))
    time = time_module(module, TOKENS, "h100-sxm", training=True)
    weights = 4096 * 1024
    unpacked = [
        layer.bytes for layer in time.layers if layer.problem.startswith("streamed") and "bitsandbytes" in layer.name
    ]
    assert unpacked == 2 * [weights // 2 + weights // 64 * 4 + 2 * weights]
    assert sum(layer.operator.endswith(("mm", "gemm_4bit")) for layer in time.layers) == 8 and not time.unsupported
    assert time.memory["weights"] == weights // 2 + weights // 64 * 4 + 2 * ADAPTER_WEIGHTS
    assert time.parameters == weights + ADAPTER_WEIGHTS


class Embedded(torch.nn.Module):
    """A table, a product and attention, with the argument of transformers' models."""

    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.table, self.product = torch.nn.Embedding(100, 64), torch.nn.Linear(64, 64)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        heads = self.product(self.table(input_ids)).unflatten(-1, (2, 32)).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=self.causal)


def test_tokens_are_the_elements_of_input_ids() -> None:
    ids = torch.zeros(4, 128, dtype=torch.int64)
    time, resized = (
        time_module(Embedded(), {"input_ids": ids}, "h100-sxm", training=True, accumulate=3, batch=batch)
        for batch in (None, 8)
    )
    assert time.tokens_per_s == pytest.approx(3 * 4 * 128 / time.total_us * 1e6) and resized.tokens == 8 * 128
    assert any("step has a factor of 1.27" in note for note in time.notes) and time.step_factor == 1
    causal = time_module(Embedded(causal=True), ids, "h100-sxm", training=True)
    assert causal.step_factor == 1.27 and any("config.json has fused kernels" in note for note in causal.notes)
    unnamed = time_module(Embedded(), ids, "h100-sxm")
    assert unnamed.tokens_per_s is None and not any("factor of" in note for note in unnamed.notes)
