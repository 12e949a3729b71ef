"""Operators: FLOPs and bytes against hand calculations, validation, and equal results for numbers and arrays."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from surrogate.features.families import OPERATORS, operator, transfer
from surrogate.features.families.attention import Attention, Mla
from surrogate.features.families.gemm import Gemm
from surrogate.features.families.moe import Moe
from surrogate.features.families.pool import MaxPool, MaxPoolBackward
from surrogate.features.families.rowwise import Quantise, Softmax
from surrogate.features.gpu import gpu
from tests.known import cases

V100 = gpu("v100")
MODEL = transfer.CollectiveModel(overhead_us=20, max_gbs=100, a=10, c=24, l=2, k=0.5, x0=17, b=-1)


def sizes_of(kind: str, base: int) -> dict[str, int]:
    """Return valid sizes for an operator kind."""
    sizes = {name: base + place for place, name in enumerate(OPERATORS[kind].size_names())}
    small = {"window": 2, "window_w": 2, "stride": 1, "stride_w": 1, "pad": 0, "pad_w": 0}
    small |= {"kv_heads": 1, "expert_parallel": 1}
    return {name: small.get(name, size) for name, size in sizes.items()}


def test_pooling_costs_equal_the_hand_calculation(refused) -> None:
    """A 112 × 112 image with window 3, stride 2 and padding 1 gives 56 × 56."""
    forward, backward = (cls(n=2, c=64, h=112, w=112, window=3, stride=2, pad=1) for cls in (MaxPool, MaxPoolBackward))
    assert (forward.out_h, forward.out_w) == (56, 56)
    assert forward.flops == 2 * 64 * 56 * 56 * 9
    assert forward.dram_bytes == 4 * 2 * 64 * (112 * 112 + 56 * 56)
    assert backward.dram_bytes == 2 * forward.dram_bytes
    with refused("max_pool: window 9 does not fit the other sizes; it exceeds the padded image"):
        MaxPool(n=1, c=1, h=8, w=8, window=9)


def test_serial_time_limits_few_long_rows_and_many_short_rows() -> None:
    """16 rows of 2^22 values take two passes with 2 KiB in flight every 0.6 µs; an H100 SXM needs 8.1 ms.
    Each of 132 SMs starts 5 of the 2^24 short rows a µs; the H100 needs 26 ms."""
    h100 = gpu("h100-sxm")
    assert operator("layer_norm", n=16, c=2**22).serial_us(h100) == pytest.approx(2 * 2**24 * 0.6 / 2048)
    assert operator("layer_norm", n=2**24, c=64).serial_us(h100) == pytest.approx(2**24 / (5 * 132))
    assert operator("softmax", n=2**24, c=64).serial_us(h100) < 1
    batch, single = (operator("batch_norm", n=n, c=64, h=64).serial_us(h100) for n in (64, 1))
    assert batch == pytest.approx(64 * single)  # one block per channel processes all images
    assert operator("relu", n=16, c=2**22).serial_us(h100) == 0
    gradient = operator("rms_norm_backward", n=2**16, c=4096, dtype="bf16")
    assert gradient.serial_us(h100) == pytest.approx(2**28 / (1.06 * 132 * 1980))


def test_softmax_rereads_rows_that_exceed_the_cache() -> None:
    """If the rows exceed L2, softmax reads them three times and writes them once."""
    small, large = (operator("softmax", n=n, c=4096) for n in (64, 65536))
    assert small.traffic_us(V100) == small.roofline_us(V100)
    assert large.traffic_us(V100) == 2 * large.roofline_us(V100)


def test_concat_and_memcpy_times_equal_the_hand_calculation() -> None:
    assert transfer.Concat(elements=1000).roofline_us(V100) == pytest.approx(2 * 4000 / (0.79 * V100.dram_gbs) / 1000)
    assert transfer.Memcpy(elements=1000).roofline_us(V100) == pytest.approx(4000 / V100.pcie_gbs / 1000)


def test_collective_time_has_three_ranges(refused) -> None:
    """Small messages take the overhead, medium ones follow the sigmoid, large ones the full bandwidth."""
    assert MODEL.time_us(2**10, 1.5) == 20
    assert MODEL.time_us(2**17, 1.5) == pytest.approx(2**17 / 10 ** (2 / 2 - 1) / 1000 * 1.5)
    assert MODEL.time_us(2**26, 1.5) == pytest.approx(2**26 / 100 * 1.5 / 1000 + 20)
    together = MODEL.time_us(2.0 ** np.array([10, 17, 26]), 1.5)
    assert together == pytest.approx([MODEL.time_us(2**x, 1.5) for x in (10, 17, 26)])
    with refused("a ≤ c"):
        transfer.CollectiveModel(overhead_us=1, max_gbs=1, a=3, c=2, l=1, k=1, x0=1, b=1)


def test_collective_time_depends_on_ranks_and_links() -> None:
    assert transfer.AllReduce(elements=8, ranks=4).factor == pytest.approx(2 * 3 / 4)
    message = transfer.AllReduce(elements=10**9, ranks=2)
    linked, alone = (message.roofline_us(gpu(name)) for name in ("h100-sxm", "l40s"))
    assert (linked, alone) == pytest.approx((4e6 / 450 + 4, 4e6 / 31.5 + 4))
    for collective in (transfer.AllToAll, transfer.AllGather, transfer.ReduceScatter):
        assert collective(elements=8, ranks=4).factor == pytest.approx(3 / 4)
    assert transfer.ReduceScatter(elements=8, ranks=4).flops == 6
    assert transfer.AllGather(elements=8, ranks=4).flops == 0


@cases(__file__)
def test_collective_uses_a_link_of_a_mesh_per_peer(name: str, ranks: int, time_ms: float) -> None:
    """The gradients are 1.664 billion fp32 values; arrays agree with numbers."""
    column = transfer.AllReduce(elements=np.full(2, 1_664_000_000), ranks=np.array([2, ranks])).roofline_us(gpu(name))
    assert column[1] == transfer.AllReduce(elements=1_664_000_000, ranks=ranks).roofline_us(gpu(name))
    assert column[1] / 1e3 == pytest.approx(time_ms, abs=0.06)


@cases(__file__)
def test_quantised_product_bytes_include_scales(dtype: str, a: float, b: float, c: float) -> None:
    product = Gemm(m=128, n=64, k=256, dtype=dtype, math="default")
    assert product.dram_bytes == pytest.approx(a * 128 * 256 + b * 256 * 64 + c * 128 * 64)
    assert product.math == "default" and product.uses_tensor_cores
    assert Quantise(n=3, c=5, dtype="bf16").dram_bytes == 3 * 5 * 3


def test_attention_costs_equal_the_hand_calculation() -> None:
    """The 4 queries see 3, 4, 5 and 6 of the 6 keys; a window of 4 reduces that to 3 + 4 + 4 + 4."""
    sizes = {"batch": 2, "heads": 8, "kv_heads": 2, "head_dim": 16, "query_length": 4, "context_length": 6}
    prefix, window = Attention(**sizes), Attention(**sizes, window=4, kv_dtype="fp8")
    assert (prefix.phase, prefix.kv_dtype, prefix.blocks) == ("context", "bf16", 16)
    assert prefix.flops == 4 * 2 * 8 * 16 * 18 and window.flops == 4 * 2 * 8 * 16 * 15
    queries = 2 * 8 * 4 * 16 * (2 + 2)
    assert prefix.dram_bytes == queries + 2 * 2 * 2 * 6 * 16 * 2
    assert Attention(**sizes | {"context_length": 9}, window=4, kv_dtype="fp8").kv_bytes == 2 * 2 * 2 * 7 * 16
    encoder = Attention(heads=8, head_dim=16, query_length=4, phase="encoder")
    assert encoder.flops == 4 * 8 * 16 * 16 and encoder.kv_heads == 8
    token = Attention(batch=3, heads=8, kv_heads=2, head_dim=16, query_length=1, context_length=100, window=64)
    assert (token.phase, token.flops, token.blocks) == ("generation", 4 * 3 * 8 * 16 * 64, 6)
    assert token.kv_bytes == 2 * 3 * 2 * 64 * 16 * 2


@pytest.mark.slow
@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 130))
def test_attention_flops_count_every_pair_of_query_and_key(query: int, before: int, window: int) -> None:
    context = query + before
    pairs = sum(min(p, window or p) for p in range(before + 1, context + 1))
    attention = Attention(heads=1, head_dim=1, query_length=query, context_length=context, window=window)
    assert attention.flops == 4 * pairs


def test_latent_attention_costs_equal_the_hand_calculation() -> None:
    """A token reads 576 and 512 absorbed values of the shared cache; a prompt uses 192 and 128 values a head."""
    token = Mla(batch=2, heads=16, query_length=1, context_length=1000, kv_dtype="fp8")
    assert token.flops == 2 * 2 * 16 * 1000 * (576 + 512)
    assert token.dram_bytes == 2 * 1000 * 576 + 2 * 16 * (576 * 2 + 512 * 2)
    prompt = Mla(heads=16, query_length=10)
    assert prompt.flops == 2 * 16 * 55 * (192 + 128)
    assert prompt.dram_bytes == 2 * (10 * 576 + 16 * 10 * 2 * 320) and prompt.blocks == 16


def test_weight_bytes_are_the_size_of_b_in_a_single_product() -> None:
    """In a batch of products B may hold activations; an operator without products has no weights."""
    assert Gemm(m=2, n=3, k=4).weight_bytes == 4 * 3 * 4
    assert Gemm(m=2, n=3, k=4, dtype="fp16").weight_bytes == 2 * 3 * 4
    batches = Gemm(batch=np.array([1, 2]), m=2, n=3, k=4)
    assert batches.weight_bytes.tolist() == [48, 0]
    assert operator("fill", n=8).weight_bytes == 0


def test_moe_costs_equal_the_hand_calculation() -> None:
    """16 pairs load 8 experts. With 2 × 2 ranks, each has 8 pairs, 4 experts and half the width."""
    layer = {"hidden": 256, "inter": 512, "topk": 2, "experts": 8}
    single_rank = Moe(tokens=8, **layer)
    assert single_rank.load == (16, 8, 2, 8) and single_rank.flops == 2 * 3 * 16 * 256 * 512
    assert single_rank.dram_bytes == 2 * (3 * 8 * 256 * 512 + 2 * (8 * 256 + 16 * 512))
    assert single_rank.blocks == 8 * 8
    split = Moe(tokens=8, **layer, expert_parallel=2, tensor_parallel=2, variant="nongated", dtype="int4_wo")
    assert split.load == (8, 4, 2, 4) and split.flops == 2 * 2 * 8 * 256 * 256
    assert split.weight_bytes == 2 * 4 * 256 * 256 * 0.515625
    assert (single_rank.multiply_adds, split.multiply_adds) == (3 * 16 * 256 * 512, 2 * 8 * 256 * 256)
    assert Moe(tokens=1, **layer).load == (2, 2, 1, 2)  # topk is 2


@pytest.mark.parametrize("exponent", [1.01, 1.2])
@pytest.mark.parametrize(("tokens", "ranks"), [(64, 1), (1024, 4), (16384, 128)])
def test_power_law_load_of_the_busiest_rank_matches_random_draws(exponent: float, tokens: int, ranks: int) -> None:
    draw, a, experts, topk = np.random.default_rng(1).random((400, 128)), 1 - exponent, 128, 8
    loads = (1 + ((0.8 * tokens) ** a - 1) * draw) ** (1 / a)
    loads = np.round(loads / loads.sum(axis=1, keepdims=True) * tokens * topk)
    busiest = loads.reshape(400, ranks, -1).sum(axis=2).max(axis=1)
    sizes = {"tokens": tokens, "hidden": 8, "inter": 8, "topk": topk, "experts": experts, "expert_parallel": ranks}
    layer = Moe(**sizes, routing=f"power_law_{exponent}")
    pairs, touched, *_ = layer.load
    assert pairs == pytest.approx(busiest.mean(), rel=0.2)
    assert touched == pytest.approx((loads > 0).sum(axis=1).mean() / ranks, rel=0.15)


def test_power_laws_of_every_exponent_have_loads() -> None:
    """Exponent 1 is the limit of its neighbours, exponent 0 draws loads evenly, and a steep law fills few experts."""
    layer = {"tokens": 1024, "hidden": 8, "inter": 8, "topk": 8, "experts": 128, "expert_parallel": 4}
    loads = [Moe(**layer, routing=f"power_law_{exponent}").load for exponent in ("0", "0.999999", "1", "1.000001")]
    even, below, one, above = (load.pairs for load in loads)
    assert below == pytest.approx(one, rel=1e-3) and above == pytest.approx(one, rel=1e-3)
    assert 1024 * 8 / 4 < even < one
    assert Moe(**layer, routing="power_law_400").load.max_pairs <= 1024 * 8


def test_power_law_gives_remaining_pairs_to_the_largest_shares() -> None:
    """Loads below half a pair round to zero. The lost pairs go to any experts, one each.

    The fullest of 8 equal ranks has 2.56 of 8 such pairs on average (40,000 draws).
    """
    layer = {"hidden": 8, "inter": 8, "topk": 8, "experts": 256, "routing": "power_law_1.01"}
    pairs, used, *_ = Moe(tokens=1, **layer, expert_parallel=8).load
    assert pairs == used == pytest.approx(2.56, rel=0.1)
    assert Moe(tokens=16, **layer).load[1] < 0.7 * 128
    both = Moe(tokens=np.array([1, 16]), **layer)
    assert [float(value[1]) for value in both.load] == list(Moe(tokens=16, **layer).load)


@cases(__file__)
def test_inconsistent_sizes_are_refused(refused, kind: str, sizes: dict[str, object], words: str) -> None:
    columns = {name: np.array(size) if isinstance(size, list) else size for name, size in sizes.items()}
    with refused(kind, words):
        operator(kind, **columns)


@pytest.mark.parametrize("kind", OPERATORS)
@settings(max_examples=8)
@given(base=st.integers(2, 3000))
def test_arrays_give_the_same_costs_as_scalars(kind: str, base: int) -> None:
    first, second = sizes_of(kind, base), sizes_of(kind, 2 * base)
    both = operator(kind, **{name: np.array([first[name], second[name]]) for name in first})
    singles = [operator(kind, **first), operator(kind, **second)]
    for name in ("flops", "dram_bytes", "blocks"):
        assert getattr(both, name) == pytest.approx([getattr(one, name) for one in singles])
    assert both.roofline_us(V100) == pytest.approx([one.roofline_us(V100) for one in singles])


@pytest.mark.parametrize("kind", OPERATORS)
@settings(max_examples=8)
@given(base=st.integers(2, 300))
def test_larger_sizes_never_take_less_time(kind: str, base: int) -> None:
    """A size that only adds work never saves time. A larger batch of embedding bags may: fewer tables share L2."""
    sizes = sizes_of(kind, base)
    smaller = operator(kind, **sizes)
    adding = {"n", "c", "m", "k", "batch", "elements", "tables", "ranks", "heads", "head_dim", "context_length"}
    adding |= {"tokens", "hidden", "inter", "experts"}
    adding -= {"batch" * (kind == "embedding_bag")}
    assert set(sizes) & adding
    for name in set(sizes) & adding:
        larger = operator(kind, **{**sizes, name: 2 * sizes[name]})
        assert larger.roofline_us(V100) >= smaller.roofline_us(V100) * (1 - 1e-9)


def test_narrow_columns_do_not_overflow() -> None:
    sizes = np.array([60000], dtype=np.int32)
    assert Softmax(n=sizes, c=sizes).flops[0] == 174 * 60000**2
