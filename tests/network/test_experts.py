"""Mixtures of experts, and other modules that depend on values: balanced routing, refusals, tied weights, autocast."""

from collections import Counter
from collections.abc import Callable

import pytest

from surrogate.network import read_network
from surrogate.network.network import ReadOptions
from surrogate.network.torch_module import module_network
from surrogate.network.torch_recording import ROUTING_NOTE

torch = pytest.importorskip("torch")
functional = torch.nn.functional
attention = functional.scaled_dot_product_attention
flex_attention = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention
MODULES = "tests.network.torch_modules"
EXPERTS, CHOSEN, WIDTH, INNER = 8, 2, 64, 96
MIXED = {"amp": "bf16", "training": True}


class Experts(torch.nn.Module):
    """A router and its experts, in one of the forms in which libraries write them."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.run = getattr(self, form)
        self.router = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = torch.nn.Parameter(torch.zeros(EXPERTS, INNER, WIDTH))
        self.down = torch.nn.Parameter(torch.zeros(EXPERTS, WIDTH, INNER))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.router(tokens).float().softmax(-1), CHOSEN, dim=-1)
        return self.run(tokens, weights.to(tokens.dtype), chosen)

    def _expert(self, tokens: torch.Tensor, index: object) -> torch.Tensor:
        return functional.linear(functional.silu(functional.linear(tokens, self.up[index])), self.down[index])

    def _summed(self, tokens, weights, chosen, experts) -> torch.Tensor:
        mask = functional.one_hot(chosen, EXPERTS + 1).permute(2, 1, 0)
        result = torch.zeros_like(tokens)
        for index in experts(mask):
            if index == EXPERTS:
                continue
            place, row = torch.where(mask[index])
            values = self._expert(tokens[row], index) * weights[row, place, None]
            result.index_add_(0, row, values.to(result.dtype))
        return result

    def every(self, *args: torch.Tensor) -> torch.Tensor:
        """Run all experts, also those without a token."""
        return self._summed(*args, lambda mask: range(EXPERTS))

    def hit(self, *args: torch.Tensor) -> torch.Tensor:
        """Run the experts that a token chose."""
        return self._summed(*args, lambda mask: mask.sum(dim=(-1, -2)).gt(0).nonzero()[:, 0])

    def masked(self, tokens: torch.Tensor, _: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Select rows by masks."""
        result = torch.zeros_like(tokens)
        for index in range(EXPERTS):
            rows = (chosen == index).any(-1)
            if rows.any():
                result[rows] += self._expert(tokens[rows], index).to(result.dtype)
        return result

    def split(self, tokens: torch.Tensor, _: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Split sorted rows by the counts of the experts."""
        counts = torch.zeros(len(tokens), EXPERTS, dtype=torch.int64).scatter(1, chosen, 1).sum(0).tolist()
        rows = tokens[chosen.flatten().argsort() // CHOSEN].split(counts)
        return torch.cat([self._expert(part, index) for index, part in enumerate(rows)])

    def batched(self, tokens: torch.Tensor, _: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Gather the weights of every choice."""
        rows = tokens.repeat_interleave(CHOSEN, 0).unsqueeze(-1)
        return self.down[chosen.flatten()] @ functional.silu(self.up[chosen.flatten()] @ rows)

    def grouped(self, tokens: torch.Tensor, _: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Multiply sorted rows in one product with groups."""
        ends = torch.histc(chosen.flatten().float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
        rows = tokens[chosen.flatten().argsort() // CHOSEN].to(self.up.dtype)
        inner = functional.silu(torch._grouped_mm(rows, self.up.transpose(1, 2), offs=ends))
        return torch._grouped_mm(inner.to(self.up.dtype), self.down.transpose(1, 2), offs=ends)


@pytest.mark.parametrize("form", ["every", "hit", "masked", "split", "batched", "grouped"])
@pytest.mark.parametrize(("tokens", "settings"), [(512, {}), (512, MIXED), (1, {}), (3, {})])
def test_experts_multiply_every_choice_once(form: str, tokens: int, settings: dict[str, object]) -> None:
    """In training, there are gradients of both weights and of the rows between them."""
    network = module_network(Experts(form), torch.zeros(tokens, WIDTH), ReadOptions(**settings))
    products = [layer.problem for layer in network.layers if layer.problem.multiply_adds]
    done = sum(each.multiply_adds for each in products if EXPERTS not in (each.m, each.n, each.k))  # without the router
    assert done == (5 if settings else 2) * tokens * CHOSEN * WIDTH * INNER
    assert (ROUTING_NOTE in network.notes) == (form != "batched")
    assert set(network.unsupported) <= {"topk", "nonzero", "sort", "histc"}


class Of(torch.nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        return self.function(*values)


@pytest.mark.parametrize("function", [lambda x: x / x.max().item(), lambda x: x[x > 0], lambda x: x if x.sum() else -x])
def test_a_refusal_names_the_layer_and_the_line(function: Callable[..., torch.Tensor], refused) -> None:
    line = function.__code__.co_firstlineno
    with refused(f": layer 1 (Of): {__file__}:{line}: aten", "needs the values of a tensor"):
        module_network(torch.nn.Sequential(torch.nn.ReLU(), Of(function)), torch.zeros(4))


@pytest.mark.parametrize("name", ["tied", "tied_with_values"])
def test_tied_weights_and_shared_parts_count_once(name: str) -> None:
    network = read_network(f"{MODULES}:{name}", training=True)
    assert network.parameters == 64 * 1000 + 8 * 8 * 3 + 8
    assert network.weights_bytes == 2 * network.parameters


def test_a_parameter_named_batch_is_the_batch() -> None:
    default, given = read_network(f"{MODULES}:bags"), read_network(f"{MODULES}:bags", batch=4)
    assert (default.batch, given.batch) == (2048, 4)
    assert given.layers[0].problem.batch == 4


def test_shared_heads_of_keys_stay_as_they_are() -> None:
    """With a mask, torch repeats them. One query reads the context like a server's step."""
    module = Of(lambda query, keys, *mask: attention(query, keys, keys, *mask, enable_gqa=True))
    query, keys = (torch.zeros(2, heads, 64, 128, dtype=torch.bfloat16) for heads in (32, 8))
    inputs = (query, keys), (query[:, :, :1], keys), (query, keys, torch.zeros(64, 64))
    layers = [layer for each in inputs for layer in module_network(module, each).layers]
    found = [layer.problem for layer in layers if hasattr(layer.problem, "kv_heads")]
    assert [(each.heads, each.kv_heads) for each in found] == [(32, 8), (32, 8), (32, 32)]
    assert (found[1].phase, found[1].query_length, found[1].context_length) == ("generation", 1, 64)


def test_flex_attention_is_named_and_the_rest_is_timed() -> None:
    """It is a higher-order operator of torch; its gradient has five products instead of two."""
    query = torch.zeros(2, 8, 256, 64, requires_grad=True)
    module = Of(lambda query: flex_attention(query, query, query) * 2)
    network = module_network(module, query, ReadOptions(training=True))
    names = "flex_attention", "flex_attention_backward"
    assert [network.missing[name].flops / (2 * 2 * 8 * 256 * 256 * 64) for name in names] == [2, 5]
    assert "mul" in {layer.operator for layer in network.layers}


class Product(torch.autograd.Function):
    """A product with its own gradient, under autocast."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, left, right):
        ctx.save_for_backward(left, right)
        return left @ right

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, gradient):
        left, right = ctx.saved_tensors
        return gradient @ right.t(), left.t() @ gradient


class Mixed(torch.nn.Linear):
    """Products of a half-precision result with fp32 weights, in forms that CPU's autocast does not cast."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = Product.apply(super().forward(values), self.weight)
        values = values * torch.mv(values, self.bias).unsqueeze(1) * torch.dot(values[0], self.bias)
        return torch.linalg.multi_dot([values, self.weight, self.weight])


def test_fp32_weights_run_under_autocast() -> None:
    network = module_network(Mixed(64, 64), torch.zeros(32, 64), ReadOptions(**MIXED))
    types = Counter(layer.problem.dtype for layer in network.layers if layer.problem.multiply_adds)
    assert types["bf16"] > 12 and types["fp32"] == types.total() - types["bf16"] <= 3, types
