"""Torch modules traced on fake tensors, and exported programs read without the loader of torch."""

import importlib
import sys
from collections import Counter
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.conv import Conv
from surrogate.features.families import operator
from surrogate.network.exported import read_exported
from surrogate.network.network import Network, ReadOptions
from surrogate.network.read import read_network
from surrogate.network.result import NetworkTime
from surrogate.network.runtime import MEMORY_NOTE
from surrogate.network.torch_module import EVAL_NOTE, module_network
from surrogate.network.training import training_iteration
from tests.known import cases, known_answers

torch = pytest.importorskip("torch")
MODULES = "tests.network.torch_modules"


def _flops(network) -> int:
    return sum(layer.problem.flops for layer in network.layers)


def _needs_torchvision() -> None:
    """Skip the test without a working torchvision; one built for another torch raises other errors than ImportError."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision: {error}")


def _directions(network) -> Counter[str]:
    return Counter(f"{conv} {conv.direction}" for conv in network.convs)


TORCHVISION_S = "mobilenet_v2", "densenet121"
LARGE = "resnet50", "vgg19", "transformer", *TORCHVISION_S


@pytest.mark.parametrize("name", ["alexnet", "dlrm", *(pytest.param(x, marks=pytest.mark.slow) for x in LARGE)])
def test_a_module_matches_the_shipped_onnx_graph(name: str) -> None:
    """Convolutions are equal; FLOPs differ because LRN and embeddings are counted differently."""
    pytest.importorskip("onnx")
    if name in TORCHVISION_S:
        _needs_torchvision()
    graph = read_network(name, batch=2)
    module = read_network(f"{MODULES}:{name}", batch=2)
    assert module.batch == graph.batch == 2
    assert not module.unsupported and not graph.unsupported
    assert _directions(module) == _directions(graph)
    assert _flops(module) == pytest.approx(_flops(graph), rel=0.03)
    trained = read_network(f"{MODULES}:{name}", batch=2, training=True)
    assert trained.training and not trained.unsupported
    assert _directions(trained) == _directions(training_iteration(graph))
    if name != "dlrm":  # the optimizer of the module also updates the embedding tables
        assert _flops(trained) == pytest.approx(_flops(training_iteration(graph)), rel=0.02)


def test_layers_have_the_names_of_their_modules() -> None:
    names = {layer.name for layer in read_network(f"{MODULES}:mixed", training=True).layers}
    assert {"conv.convolution", "conv.convolution.bias", "norm.native_layer_norm", "optimizer"} <= names
    backward = {"conv.convolution_backward.bwd_filter", "norm.native_layer_norm_backward", "linear.mm", "linear.mm#2"}
    assert backward < names


class Parts(torch.nn.Module):
    """Three products of one input, an identity module after two of them, and a keyword argument."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("query", "key", "value"):
            setattr(self, name, torch.nn.Linear(8, 8, bias=False))
        self.dropped = torch.nn.Identity()

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return self.dropped(self.query(x)) * self.key(x) + scale * self.dropped(self.value(x))


def test_gradients_have_the_name_of_the_module_of_the_forward_call() -> None:
    """Modules that share the input, or pass the result on, do not get the gradients."""
    inputs = (torch.zeros(2, 8),), {"scale": torch.zeros(2, 8)}
    trained = module_network(Parts(), inputs, ReadOptions(training=True))
    layers = trained.layers
    assert 0 < trained.gradient_bytes <= 4 * 3 * 8 * 8
    products = Counter(layer.name.partition(".")[0] for layer in layers if layer.operator == "mm")
    assert products == {"query": 2, "key": 2, "value": 2}
    assert not any(layer.name.startswith("dropped") for layer in layers)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a user's module into the current folder."""
    (tmp_path / "my_own_nets.py").write_text(known_answers(__file__)["my_own_nets"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_own_nets", raising=False)


def test_a_file_is_read_by_the_name_of_its_function(own: None, refused, tmp_path_factory) -> None:
    """The function's name may be omitted if the file defines only one."""
    assert read_network("my_own_nets.py:plain").layers == read_network("my_own_nets:plain").layers
    folder = tmp_path_factory.mktemp("other")
    (folder / "my_only_net.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Linear(8, 8), (torch.zeros(2, 8),)\n"
    )
    only = read_network(folder / "my_only_net.py")
    assert only.layers and only.layers == read_network(f"{folder}/my_only_net.py:build").layers
    with refused("name one of its functions"):
        read_network("my_own_nets.py")


def test_a_user_module_is_read(own: None) -> None:
    """The batch is set although the callable has no parameter for it."""
    found = read_network("my_own_nets:plain", batch=6)
    first, second = found.convs
    assert first == Conv(n=6, c=3, h=16, k=8, r=3, pad_h=2, dilation_h=2)
    assert (second.direction, second.n, second.c, second.h, second.out_h) == ("bwd_data", 6, 4, 32, 16)
    assert [layer.operator for layer in found.layers][-2:] == ["native_group_norm", "amax"]
    assert not found.unsupported


def test_inputs_may_be_a_dict_or_a_list(own: None) -> None:
    for name in ("named", "listed"):
        found = read_network(f"my_own_nets:{name}", batch=6)
        assert found.layers and not found.unsupported and found.batch == 6


@pytest.mark.slow
def test_a_compiled_module_gets_the_compiled_runtime() -> None:
    from surrogate.network import time_module

    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    times = [time_module(m, torch.zeros(2, 8), "t4", training=True) for m in (module, torch.compile(module))]
    assert [time.host_time and time.host_time.runtime for time in times] == ["eager", "compiled"]
    assert MEMORY_NOTE in times[1].notes and MEMORY_NOTE not in times[0].notes
    assert all(layer.name.partition(".")[0] != "_orig_mod" for layer in times[1].layers)


@pytest.mark.parametrize("training", [False, True])
def test_training_a_module_in_eval_mode_adds_a_note(training: bool) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout().eval())
    found = module_network(module, torch.zeros(2, 8), ReadOptions(training=training))
    assert (EVAL_NOTE in found.notes) == training == ("native_dropout" in {layer.operator for layer in found.layers})


def test_max_batch_finds_the_largest_batch_of_a_live_module() -> None:
    """The largest batch leaves 3 % of the memory, and one sample more does not."""
    from surrogate.network import time_module

    def timed(**settings: Any) -> NetworkTime:
        return time_module(torch.nn.Linear(8, 8), torch.zeros(2, 2**18, 8), "t4", training=True, **settings)

    largest = timed(max_batch=True)
    assert largest.memory_bytes and largest.batch and largest.memory_bytes <= 0.97 * largest.gpu_memory_bytes
    assert (timed(batch=largest.batch + 1).memory_bytes or 0) > 0.97 * largest.gpu_memory_bytes
    too_large = timed(batch=2 * largest.batch)
    assert too_large.fits is False and "DOES NOT FIT: needs 2" in too_large.headline()


def test_an_empty_tensor_costs_nothing() -> None:
    class Empty(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.cat([torch.zeros(0, 8), input]))

    found = module_network(Empty(8, 8), torch.zeros(2, 8))
    assert not found.unsupported and found.ignored["zeros"] == 1


def test_a_constructor_may_read_tensor_values(own: None) -> None:
    """Vision transformers read drop-path rates and RegNet its widths, so that the module is built with real values."""
    found = read_network("my_own_nets:drop", training=True)
    assert [layer.operator for layer in found.layers[:2]] == ["addmm", "mul"]
    assert not found.unsupported


@pytest.mark.slow
@pytest.mark.parametrize("name", known_answers(__file__)["architectures"])
def test_timm_architectures_are_almost_fully_supported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least 98 % of the operators of each architecture are supported."""
    pytest.importorskip("timm")
    builder = "import timm, torch\nfrom functools import partial\n"
    builder += "def build(name, batch=1):\n    model = timm.create_model(name)\n"
    builder += "    return model, torch.zeros(batch, *model.default_cfg['input_size'])\n"
    (tmp_path / "timm_builder.py").write_text(f"{builder}net = partial(build, {name!r})\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "timm_builder", raising=False)
    network = read_network("timm_builder:net", batch=2)
    assert network.batch == 2
    assert len(network.layers) / (len(network.layers) + sum(network.unsupported.values())) >= 0.98


def test_layers_copied_by_a_constructor_are_counted(own: None) -> None:
    """The encoder of torch deep-copies its block, and the module is built once for each batch."""
    parameters = {read_network("my_own_nets:copying", batch=batch).parameters for batch in (1, 2, 3, 4)}
    block = torch.nn.TransformerEncoderLayer(32, 2, 64)
    assert parameters == {3 * sum(weight.numel() for weight in block.parameters())}


def test_reading_a_large_module_allocates_no_weights(own: None) -> None:
    """The module has 160 GB of weights."""
    assert read_network("my_own_nets:large").layers[0].problem.sizes["k"] == 200_000


@cases(__file__)
def test_an_invalid_user_module_is_refused_in_one_line(refused, own: None, name: str, message: str) -> None:
    with refused(message):
        read_network(name)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a small exported program with a dynamic batch."""
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.linear = nn.Linear(8 * 8 * 8, 10)

        def forward(self, x, y):
            pooled = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2).flatten(1)
            attended = nn.functional.scaled_dot_product_attention(y, y, y)
            return self.linear(pooled).softmax(-1), torch.cat([attended, y])

    path = tmp_path_factory.mktemp("exported") / "net.pt2"
    batch = torch.export.Dim("batch")
    inputs = (torch.zeros(4, 3, 16, 16), torch.zeros(4, 7, 32))
    program = torch.export.export(Net().eval(), inputs, dynamic_shapes=({0: batch}, {0: batch}))
    torch.export.save(program, path)
    return path


@pytest.mark.parametrize("batch", [None, 32])
def test_an_exported_program_is_read(exported: Path, batch: int | None) -> None:
    """A dynamic batch may be changed, and expressions of its symbol change with it."""
    found = read_exported(exported, ReadOptions(batch=batch))
    n = batch or 4
    assert found.batch == n
    assert found.convs == (Conv(n=n, c=3, h=16, k=8, r=3, pad_h=1),)
    by_name = {layer.operator: layer.problem for layer in found.layers}
    assert by_name["linear"].sizes == {"batch": 1, "m": n, "n": 10, "k": 512}
    assert by_name["scaled_dot_product_attention.scores"].sizes == {"batch": n, "m": 7, "n": 7, "k": 32}
    assert by_name["cat"].elements == 2 * n * 7 * 32
    assert {layer.name for layer in found.layers} >= {"conv.conv2d", "linear.linear"}
    assert not found.unsupported
    trained = Counter(layer.operator for layer in training_iteration(found).layers)
    assert trained["conv2d.bwd_filter"] == 1
    assert "conv2d.bwd_data" not in trained


def test_timing_a_live_module_does_not_change_it(refused, capfd) -> None:
    """Weights, gradients and mode do not change, and torch logs no stack."""
    from surrogate.network import time_module

    parts = torch.nn.Conv2d(3, 8, 3), torch.nn.Dropout(), torch.nn.Flatten(), torch.nn.Linear(288, 4)
    module = torch.nn.Sequential(*parts)
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    inputs = torch.ones(2, 3, 8, 8)
    forward = time_module(module, inputs, "t4")
    assert [layer.name for layer in forward.layers if layer.algorithm] == ["0.convolution"]
    training = time_module(module, (inputs,), "t4", training=True, workspace_limit=0)
    assert training.total_us > forward.total_us
    assert {layer.workspace_bytes for layer in training.layers if layer.algorithm} == {0}
    assert module.training and all(torch.equal(before[name], w) for name, w in module.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in module.parameters())
    with refused("Sequential: layer 0 (Conv2d): "):
        time_module(module, torch.ones(2, 5, 8, 8), "t4")
    assert capfd.readouterr().err == ""
    with refused("int"):
        time_module(3, inputs, "t4")
    with refused("the GPU is a Tensor"):
        time_module(module, "t4", inputs)
    for invalid in ({"data_parallel": 0}, {"batch": -1}, {"training": "yes"}, {"dtype": "int8"}):
        with refused(*invalid):
            time_module(module, inputs, "t4", **invalid)


class Recomputed(torch.nn.Module):
    """Blocks of dropout and attention, with or without activation checkpointing."""

    def __init__(self, *, checkpointing: bool) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

    def block(self, linear: Any, x: Any) -> Any:
        x = torch.nn.functional.dropout(linear(x))
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    def forward(self, x: Any) -> Any:
        for linear in self.blocks:
            again = partial(torch.utils.checkpoint.checkpoint, self.block, use_reentrant=False)
            x = (again if self.checkpointing else self.block)(linear, x)
        return x


@pytest.mark.parametrize("amp", [None, "bf16"])
def test_activation_checkpointing_costs_time_and_saves_memory(amp: str | None) -> None:
    """With checkpointing, the forward pass of each block runs twice."""
    from surrogate.network import time_module

    inputs = torch.zeros(8, 4, 512, 64)
    stored, recomputed = (
        time_module(Recomputed(checkpointing=checkpointing), inputs, "h100-sxm", training=True, amp=amp)
        for checkpointing in (False, True)
    )
    for word in ("scaled_dot_product_", "native_dropout"):
        before, after = (
            sum(word in layer.name and "backward" not in layer.name for layer in time.layers)
            for time in (stored, recomputed)
        )
        assert after == 2 * before > 0
    assert stored.memory_bytes and recomputed.memory_bytes and recomputed.memory_bytes < stored.memory_bytes
    assert stored.total_us < recomputed.total_us < 2 * stored.total_us
    assert stored.model_flops == recomputed.model_flops > 0 and stored.multiply_adds < recomputed.multiply_adds


@cases(__file__)
@pytest.mark.parametrize("training", [False, True])
def test_torch_layers_are_fully_supported(layer: str, arguments: dict[str, Any], axes: int, training: bool) -> None:
    """A 1×1 convolution before the layer makes sure that the layer has a gradient."""
    parts = getattr(torch.nn, f"Conv{axes}d")(4, 4, 1), getattr(torch.nn, layer)(**arguments)
    image = torch.zeros(2, 4, *[6] * axes)
    found = module_network(torch.nn.Sequential(*parts), image, ReadOptions(training=training))
    assert len(found.layers) > 2 and not found.unsupported


@pytest.mark.parametrize(("dtype", "shape"), [("fp32", (4, 8, 64)), ("bf16", (2, 8, 128))])
def test_rms_norm_and_its_gradient_are_one_kernel_each(dtype: str, shape: tuple[int, ...]) -> None:
    """As on CUDA since PyTorch 2.9. There, images in NHWC run in parts."""
    pytest.importorskip("torch", "2.9")
    options = ReadOptions(training=True, dtype=dtype)
    layers = module_network(torch.nn.RMSNorm(shape[-1]), torch.zeros(shape, requires_grad=True), options).layers
    found = {layer.operator: layer.problem for layer in layers if "norm" in layer.operator}
    sizes = {"n": shape[0] * shape[1], "c": shape[2], "dtype": dtype}
    kinds = ("rms_norm", "rms_norm_backward")
    assert found == {f"_fused_{kind}": operator(kind, **sizes) for kind in kinds}
    assert {layer.operator for layer in layers} - {*found} == {"sum", "stack", "ones_like", "adam"}
    image = torch.zeros(2, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    assert len(module_network(torch.nn.RMSNorm(8), image).layers) > 1


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch's own decompositions
@pytest.mark.parametrize("is_core", [False, True])
def test_an_exported_rms_norm_is_one_kernel_also_if_it_was_decomposed(tmp_path: Path, is_core: bool) -> None:
    """The second norm has two axes and no weight; the product between them stays."""
    parts = torch.nn.RMSNorm(64), torch.nn.Linear(64, 32), torch.nn.RMSNorm((8, 32), elementwise_affine=False)
    program = torch.export.export(torch.nn.Sequential(*parts).bfloat16(), (torch.zeros(4, 8, 64).bfloat16(),))
    torch.export.save(program.run_decompositions() if is_core else program, tmp_path / "norms.pt2")
    first, product, second = (layer.problem for layer in read_exported(tmp_path / "norms.pt2").layers)
    assert (first, second) == tuple(operator("rms_norm", n=n, c=c, dtype="bf16") for n, c in ((32, 64), (4, 256)))
    assert product.kind == "linear"


@pytest.mark.parametrize("training", [False, True])
def test_autocast_runs_products_in_half_precision_and_norms_in_fp32(training: bool) -> None:
    """As on a GPU, weights stay in fp32, attention is fused, and gradients have the types of their forward calls."""
    fp32, mixed = (read_network(f"{MODULES}:mixed", amp=amp, training=training) for amp in (None, "fp16"))
    types = {layer.operator: layer.problem.dtype for layer in mixed.layers}
    product = "mm" if training else "bmm"
    assert {types["convolution"], types[product], types["_scaled_dot_product_flash_attention"]} == {"fp16"}
    assert types["native_layer_norm"] == "fp32" and not mixed.unsupported
    flash = [layer.problem for layer in mixed.layers if "flash" in layer.operator]
    assert flash and all(2 * problem.multiply_adds == problem.flops for problem in flash)
    assert mixed.weights_bytes == fp32.weights_bytes == 4 * (8 * 16 * 9 + 16 + 16 * 32 + 32 + 2 * 32)
    casts = [network.layers for network in (fp32, mixed)]
    counts = [sum(layer.operator == "_to_copy" for layer in layers) for layers in casts]
    assert counts[1] > counts[0]
    if training:
        assert types["native_layer_norm_backward"] == types["adam"] == "fp32"
        assert types["convolution_backward.bwd_filter"] == "fp16"
        assert sum(layer.parameters for layer in mixed.layers[: mixed.forward_layers]) == mixed.parameters


@pytest.mark.parametrize("devices", [("meta", "meta"), ("meta", "cpu"), ("cpu", "meta")])
def test_only_shapes_count_and_no_device(devices: tuple[str, str]) -> None:
    """Tied weights on the meta device run under autocast as on the CPU, also from a function that builds them."""
    options = ReadOptions(training=True, amp="bf16")

    def read(weights: str, values: str) -> Network:
        with torch.device(weights):
            first, last = torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, bias=False)
        last.weight = first.weight
        module = torch.nn.Sequential(first, torch.nn.ReLU(), last)
        return module_network(module, torch.zeros(32, 64, device=values), options)

    moved, plain = read(*devices), read("cpu", "cpu")
    assert moved == plain and moved.parameters == 64 * 64
    assert {layer.problem.dtype for layer in moved.layers if layer.operator == "mm"} == {"bf16"}
    with torch.device(devices[0]):
        built = read_network(f"{MODULES}:mixed", amp="fp16", training=True)
    assert built.layers == read_network(f"{MODULES}:mixed", amp="fp16", training=True).layers


class Cast(torch.nn.Linear):
    """A product that runs under autocast for CUDA."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return super().forward(input)


def test_cuda_autocast_applies_inside_and_around_a_module(refused) -> None:
    """Without CUDA, torch disables its autocast around a module, and the caller must give amp."""
    plain, inputs = torch.nn.Linear(8, 8), torch.zeros(4, 8)
    found = [module_network(Cast(8, 8), inputs)]
    found += [module_network(plain, inputs, ReadOptions(**{name: torch.bfloat16})) for name in ("amp", "dtype")]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found.append(module_network(plain, inputs))
    products = [[layer.problem for layer in network.layers if layer.problem.multiply_adds] for network in found]
    assert [{problem.dtype for problem in each} for each in products] == [{"bf16"}] * 4
    with torch.autocast("cuda", enabled=False), refused("give amp bf16"):
        module_network(plain, inputs)


def test_products_run_in_tf32_if_torch_allows_it() -> None:
    """A T4 has no TF32."""
    from surrogate.network import time_module

    query = torch.nn.Linear(4096, 4096), torch.zeros(4096, 4096)
    fp32 = time_module(*query, "h100-sxm")
    torch.set_float32_matmul_precision("high")
    try:
        tf32, t4 = (time_module(*query, name) for name in ("h100-sxm", "t4"))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert tf32.total_us < fp32.total_us / 2 and "TF32" not in t4.headline()
    assert "products TF32" in tf32.headline() and "products fp32" in fp32.headline()


def test_autocast_of_another_dtype_is_refused(refused) -> None:
    with refused("--amp"):
        read_network(f"{MODULES}:mixed", amp="fp16", dtype="bf16")


class Function(torch.nn.Module):
    """A function of torch, by its name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = attrgetter(name)(torch)

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def _function_network(name: str, arguments: list[Any]) -> Network:
    """Return the network of one call; a text among the arguments is the type and the sizes of a tensor."""

    def value(given: Any) -> Any:
        if not isinstance(given, str):
            return [value(each) for each in given] if isinstance(given, list) else given
        dtype, *sizes = given.split()
        return torch.zeros(*map(int, sizes), dtype=getattr(torch, dtype))

    return module_network(Function(name), [value(given) for given in arguments])


@cases(__file__)
def test_operators_have_the_traffic_of_their_kernels(
    function: str, arguments: list[Any], launches: int, traffic: int, flops: int
) -> None:
    network = _function_network(function, arguments)
    found = [sum(getattr(layer.problem, name) for layer in network.layers) for name in ("dram_bytes", "flops")]
    assert (len(network.layers), *found, network.unsupported) == (launches, traffic, flops, {})


@cases(__file__)
def test_operators_without_a_time_are_named(function: str, arguments: list[Any], named: str) -> None:
    assert named in _function_network(function, arguments).unsupported


def test_types_and_tensors_that_are_not_timed_are_refused(refused) -> None:
    with refused("tensors of torch.complex128 are not timed"):
        _function_network("sin", ["complex128 8"])
    with refused("nested tensors are not timed"):
        rows = [torch.zeros(3, 4), torch.zeros(2, 4)]
        module_network(Function("sin"), torch.nested.nested_tensor(rows, layout=torch.jagged))


class Branch(torch.nn.Linear):
    """A product if the module's own positions are one sequence; ``changed`` positions depend on the input."""

    changed = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(8)
        if self.changed:
            positions[0] = values[0, 0].long()
        return super().forward(values) if (torch.diff(positions) == 1).all() else values


def test_modules_branch_on_values_that_they_compute_from_constants(refused) -> None:
    module = Branch(8, 8)
    assert [layer.operator for layer in module_network(module, torch.zeros(4, 8)).layers][-1] == "addmm"
    module.changed = True
    with refused("needs the values of a tensor"):
        module_network(module, torch.zeros(4, 8))


def test_models_of_transformers_have_causal_attention_without_a_mask() -> None:
    """Its masks are empty on a GPU; without values, a mask would have been built for every layer."""
    models = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = models.LlamaForCausalLM(models.LlamaConfig(**sizes, vocab_size=100, use_cache=False))
    tokens = torch.zeros(2, 64, dtype=torch.long)
    network = module_network(model, {"input_ids": tokens, "labels": tokens}, ReadOptions(training=True, amp="bf16"))
    attention = [layer.problem for layer in network.layers if layer.operator.endswith("flash_attention")]
    # Per layer 2 products of 2 samples · 2 heads · 64 · 65 / 2 causal pairs · 32 columns.
    assert [each.multiply_adds for each in attention] == [2 * 2 * 2 * (64 * 65 // 2) * 32] * 2 and network.is_long
