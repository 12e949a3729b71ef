"""Torch modules on fake tensors, and exported programs without torch's loader."""

import importlib
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.network.exported import read_exported
from surrogate.network.network import ReadOptions
from surrogate.network.read import read_network
from surrogate.network.result import NetworkTime
from surrogate.network.runtime import MEMORY_NOTE
from surrogate.network.torch_module import EVAL_NOTE, module_network
from surrogate.network.training import training_iteration

torch = pytest.importorskip("torch")
MODULES = "tests.network.torch_modules"


def _flops(network) -> int:
    return sum(layer.problem.flops for layer in network.layers)


def _needs_torchvision() -> None:
    """It must be built for the torch that is installed, or its import fails with another error than ImportError."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision: {error}")


def _directions(network) -> Counter[str]:
    return Counter(f"{conv} {conv.direction}" for conv in network.convs)


TORCHVISION_S = "mobilenet_v2", "densenet121"
LARGE = "resnet50", "vgg19", "transformer", *TORCHVISION_S


@pytest.mark.parametrize("name", ["alexnet", "dlrm", *(pytest.param(x, marks=pytest.mark.slow) for x in LARGE)])
def test_a_module_and_the_onnx_graph_that_ships_do_the_same(name: str) -> None:
    """Same convolutions, forward and in a training iteration; FLOPs within what LRN and embeddings count apart."""
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
    if name != "dlrm":  # its dense step covers tables that the graph's does not
        assert _flops(trained) == pytest.approx(_flops(training_iteration(graph)), rel=0.02)


def test_layers_carry_the_modules_names() -> None:
    """Forward and backward."""
    names = {layer.name for layer in read_network(f"{MODULES}:mixed", training=True).layers}
    assert {"conv.convolution", "conv.convolution.bias", "norm.native_layer_norm", "optimizer"} <= names
    backward = {"conv.convolution_backward.bwd_filter", "norm.native_layer_norm_backward", "linear.mm", "linear.mm#2"}
    assert backward < names


class Parts(torch.nn.Module):
    """Three products of one input, a module that hands its input on behind them, and keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("query", "key", "value"):
            setattr(self, name, torch.nn.Linear(8, 8, bias=False))
        self.dropped = torch.nn.Identity()

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return self.dropped(self.query(x)) * self.key(x) + scale * self.dropped(self.value(x))


def test_gradients_stand_under_the_module_that_made_the_forward_call() -> None:
    """Not under one that shared its input or handed its result on."""
    inputs = (torch.zeros(2, 8),), {"scale": torch.zeros(2, 8)}
    trained = module_network(Parts(), inputs, ReadOptions(training=True))
    layers = trained.layers
    assert 0 < trained.gradient_bytes <= 4 * 3 * 8 * 8
    products = Counter(layer.name.partition(".")[0] for layer in layers if layer.operator == "mm")
    assert products == {"query": 2, "key": 2, "value": 2}
    assert not any(layer.name.startswith("dropped") for layer in layers)


SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding="same", dilation=2)
        self.up = nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, 4)
        self.lstm = nn.LSTM(5, 6)
    def forward(self, x):
        return self.norm(self.up(torch.relu(self.conv(x)))).amax((2, 3))

def plain():
    return Net(), torch.zeros(2, 3, 16, 16)

def forgetful():
    return Net()

class Asking(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x

def asking():
    return Asking(8, 8), torch.zeros(1, 8)

def halved():
    return nn.Linear(8, 8).half(), [torch.zeros(1, 8)]

def named():
    return nn.Linear(8, 8), {"input": torch.zeros(3, 8)}

def listed():
    return nn.CosineSimilarity(), [torch.zeros(3, 8), torch.zeros(3, 8)]

def broken():
    raise RuntimeError("no\\nsuch thing")

def large():
    return nn.Linear(200_000, 200_000), torch.zeros(1, 200_000)

def empty():
    return nn.Identity(), torch.zeros(1)

class Drop(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = torch.linspace(0, 0.5, 3)[1].item() * len(torch.tensor([1, 1, 2]).unique())
        self.linear = nn.Linear(8, 4)
    def forward(self, x):
        return self.linear(x) * self.rate

def drop():
    return Drop(), torch.zeros(2, 8)

number = 3


def copying(batch: int = 1):
    block = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    return nn.TransformerEncoder(block, 3), (torch.zeros(batch, 5, 32),)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module in the current folder."""
    (tmp_path / "my_own_nets.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_own_nets", raising=False)


def test_a_file_names_its_function(own: None, refused, tmp_path_factory) -> None:
    """With the function's name, or alone where it defines one; from any folder."""
    assert read_network("my_own_nets.py:plain").layers == read_network("my_own_nets:plain").layers
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "my_only_net.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Linear(8, 8), (torch.zeros(2, 8),)\n"
    )
    alone = read_network(folder / "my_only_net.py")
    assert alone.layers and alone.layers == read_network(f"{folder}/my_only_net.py:build").layers
    with refused("name one of its functions"):
        read_network("my_own_nets.py")


def test_a_users_module(own: None) -> None:
    """Padding "same", a transposed convolution, group norm; the batch of a callable without a parameter for it."""
    found = read_network("my_own_nets:plain", batch=6)
    first, second = found.convs
    assert first == Conv(n=6, c=3, h=16, k=8, r=3, pad_h=2, dilation_h=2)
    assert (second.direction, second.n, second.c, second.h, second.out_h) == ("bwd_data", 6, 4, 32, 16)
    assert [layer.operator for layer in found.layers][-2:] == ["native_group_norm", "amax"]
    assert not found.unsupported


def test_inputs_by_name_and_in_a_list(own: None) -> None:
    """Of the wanted batch, which is the network's."""
    for name in ("named", "listed"):
        found = read_network(f"my_own_nets:{name}", batch=6)
        assert found.layers and not found.unsupported and found.batch == 6


@pytest.mark.slow
def test_a_compiled_module_is_timed_compiled() -> None:
    """Unless told otherwise."""
    from surrogate.network import time_module

    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    times = [time_module(each, torch.zeros(2, 8), "t4", training=True) for each in (module, torch.compile(module))]
    assert [time.host_time and time.host_time.runtime for time in times] == ["eager", "compiled"]
    assert MEMORY_NOTE in times[1].notes and MEMORY_NOTE not in times[0].notes
    assert all(layer.name.partition(".")[0] != "_orig_mod" for layer in times[1].layers)


@pytest.mark.parametrize("training", [False, True])
def test_a_module_in_eval_mode_is_trained_in_train_mode_which_a_note_says(training: bool) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout().eval())
    found = module_network(module, torch.zeros(2, 8), ReadOptions(training=training))
    assert (EVAL_NOTE in found.notes) == training == ("native_dropout" in {layer.operator for layer in found.layers})


def test_the_largest_batch_of_a_live_module() -> None:
    """Fits, and one more does not."""
    from surrogate.network import time_module

    def timed(**settings: Any) -> NetworkTime:
        return time_module(torch.nn.Linear(8, 8), torch.zeros(2, 2**18, 8), "t4", training=True, **settings)

    largest = timed(max_batch=True)
    assert largest.fits and largest.batch
    too_large = timed(batch=largest.batch + 1)
    assert too_large.fits is False and "DOES NOT FIT: needs 1" in too_large.headline()


def test_an_empty_tensor_costs_nothing() -> None:
    class Empty(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.cat([torch.zeros(0, 8), input]))

    found = module_network(Empty(8, 8), torch.zeros(2, 8))
    assert not found.unsupported and found.ignored["zeros"] == 1


def test_a_constructor_that_reads_a_value(own: None) -> None:
    """As vision transformers do for drop-path rates and RegNet for its widths: the module is built for real."""
    found = read_network("my_own_nets:drop", training=True)
    assert [layer.operator for layer in found.layers[:2]] == ["addmm", "mul"]
    assert not found.unsupported


ARCHITECTURES = [
    "vit_base_patch16_224",
    "deit3_small_patch16_224",
    "eva02_tiny_patch14_224",
    "beit_base_patch16_224",
    "convnext_tiny",
    "convnextv2_tiny",
    "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256",
    "regnety_016",
    "regnetx_032",
    "resnet50",
    "resnext50_32x4d",
    "resnetv2_50",
    "resnest50d",
    "seresnet50",
    "efficientnet_b0",
    "tf_efficientnetv2_s",
    "mobilenetv3_large_100",
    "mobilevit_s",
    "densenet121",
    "dla34",
    "inception_v4",
    "xception41",
    "nfnet_f0",
    "maxvit_tiny_tf_224",
    "coatnet_0_rw_224",
    "cait_s24_224",
    "crossvit_small_240",
    "xcit_small_12_p16_224",
    "mixer_b16_224",
    "poolformer_s12",
    "pvt_v2_b1",
    "levit_256",
    "edgenext_small",
    "fastvit_t8",
    "ghostnet_100",
    "davit_tiny",
    "volo_d1_224",
    "vgg16",
    "tiny_vit_5m_224",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_of_timm(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty of them, built as a user would."""
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


def test_layers_that_a_constructor_copies_are_copied_without_memory(own: None) -> None:
    """torch's encoder deep-copies its block: what a batch needs is found by building it many times."""
    counted = {read_network("my_own_nets:copying", batch=batch).parameters for batch in (1, 2, 3, 4)}
    block = torch.nn.TransformerEncoderLayer(32, 2, 64)
    assert counted == {3 * sum(weight.numel() for weight in block.parameters())}


def test_no_memory_is_needed(own: None) -> None:
    """160 GB of weights."""
    assert read_network("my_own_nets:large").layers[0].problem.sizes["k"] == 200_000


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_own_nets:forgetful", r"returned Net; it must return \(module, inputs\)"),
        ("my_own_nets:broken", "RuntimeError: no such thing"),
        ("my_own_nets:number", "not callable"),
        ("my_own_nets.py:resnet", "has no resnet; name one that it defines: plain, forgetful, asking"),
        ("my_own_nets:asking", "needs the values of a tensor"),
        ("my_own_nets:halved", "operands in fp16 and fp32"),
        ("no_such_module_at_all:f", "no module no_such_module_at_all is in this folder"),
    ],
)
def test_what_a_users_module_can_do_wrong(own: None, name: str, message: str) -> None:
    """One line each."""
    with pytest.raises(InputError, match=message) as error:
        read_network(name)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small program with a dynamic batch."""
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
def test_an_exported_program(exported: Path, batch: int | None) -> None:
    """Its own batch, or another where it is dynamic; symbols in sums follow."""
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


def test_a_live_module_is_timed_in_place(refused, capfd) -> None:
    """Its weights, gradients and mode stay; a limit on workspaces holds for every pick; torch logs no stack."""
    from surrogate.network import time_module

    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.Dropout(), torch.nn.Flatten(), torch.nn.Linear(288, 4)
    )
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
    for wrong in ({"data_parallel": 0}, {"batch": -1}, {"training": "yes"}, {"dtype": "int8"}):
        with refused(*wrong):
            time_module(module, inputs, "t4", **wrong)


class Recomputed(torch.nn.Module):
    """Blocks of dropout and attention, whose activations are kept, or computed again in the backward pass."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.again = again
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

    def block(self, linear: Any, x: Any) -> Any:
        x = torch.nn.functional.dropout(linear(x))
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    def forward(self, x: Any) -> Any:
        for linear in self.blocks:
            run = (
                partial(torch.utils.checkpoint.checkpoint, self.block, use_reentrant=False)
                if self.again
                else self.block
            )
            x = run(linear, x)
        return x


@pytest.mark.parametrize("amp", [None, "bf16"])
def test_activations_that_are_computed_again_cost_time_and_save_memory(amp: str | None) -> None:
    """Each block's forward pass runs twice."""
    from surrogate.network import time_module

    inputs = torch.zeros(8, 4, 512, 64)
    kept, again = (
        time_module(Recomputed(again=again), inputs, "h100-sxm", training=True, amp=amp) for again in (False, True)
    )
    for word in ("scaled_dot_product_", "native_dropout"):
        before, after = (
            sum(word in layer.name and "backward" not in layer.name for layer in time.layers) for time in (kept, again)
        )
        assert after == 2 * before > 0
    assert kept.memory_bytes and again.memory_bytes and again.memory_bytes < kept.memory_bytes
    assert kept.total_us < again.total_us < 2 * kept.total_us


IMAGE, VOLUME = (2, 4, 12, 12), (2, 4, 6, 6, 6)
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "transposed over volumes": (torch.nn.ConvTranspose3d(4, 6, 3, 2), VOLUME),
    "pooled volumes": (torch.nn.AdaptiveMaxPool3d(3), VOLUME),
    "pooled rows": (torch.nn.AdaptiveAvgPool1d(3), (2, 4, 12)),
    "instance norm": (torch.nn.InstanceNorm3d(4), VOLUME),
    "response norm": (torch.nn.LocalResponseNorm(3), IMAGE),
    "padded": (torch.nn.ReplicationPad3d(1), VOLUME),
    "resampled": (torch.nn.Upsample(scale_factor=2, mode="trilinear"), VOLUME),
    "shuffled": (torch.nn.PixelUnshuffle(2), IMAGE),
    "gated": (torch.nn.GLU(), IMAGE),
    "sloped": (torch.nn.PReLU(), IMAGE),
    "shrunk": (torch.nn.Softshrink(), IMAGE),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("training", [False, True])
def test_layers_of_torch_are_wholly_supported(name: str, training: bool) -> None:
    """Behind a convolution of one tap, so that there is a gradient; no operator of theirs is left out of the sums."""
    layer, shape = LAYERS[name]
    first = {3: torch.nn.Conv1d, 4: torch.nn.Conv2d, 5: torch.nn.Conv3d}[len(shape)](4, 4, 1)
    found = module_network(torch.nn.Sequential(first, layer), torch.zeros(shape), ReadOptions(training=training))
    assert len(found.layers) > 2 and not found.unsupported


@pytest.mark.parametrize("training", [False, True])
def test_autocast_runs_products_in_half_precision_and_norms_in_fp32(training: bool) -> None:
    """As on a GPU: weights stay in fp32, attention is the fused kernel, and gradients follow their forward calls."""
    plain, mixed = (read_network(f"{MODULES}:mixed", amp=amp, training=training) for amp in (None, "fp16"))
    types = {layer.operator: layer.problem.dtype for layer in mixed.layers}
    product = "mm" if training else "bmm"
    assert {types["convolution"], types[product], types["_scaled_dot_product_flash_attention"]} == {"fp16"}
    assert types["native_layer_norm"] == "fp32" and not mixed.unsupported
    assert all(
        2 * layer.problem.multiply_adds == layer.problem.flops for layer in mixed.layers if "flash" in layer.operator
    )
    assert mixed.weights_bytes == plain.weights_bytes == 4 * (8 * 16 * 9 + 16 + 16 * 32 + 32 + 2 * 32)
    casts = [network.layers for network in (plain, mixed)]
    assert sum(layer.operator == "_to_copy" for layer in casts[1]) > sum(
        layer.operator == "_to_copy" for layer in casts[0]
    )
    if training:
        assert types["native_layer_norm_backward"] == types["adam"] == "fp32"
        assert types["convolution_backward.bwd_filter"] == "fp16"
        assert sum(layer.parameters for layer in mixed.layers[: mixed.forward_layers]) == mixed.parameters


class Cast(torch.nn.Linear):
    """A product under autocast for CUDA."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return super().forward(input)


def test_autocast_for_cuda_counts_in_the_module_and_around_it(refused) -> None:
    """As every name of the type does; torch turns CUDA's off where it finds none, which is refused around it."""
    plain, inputs = torch.nn.Linear(8, 8), torch.zeros(4, 8)
    found = [module_network(Cast(8, 8), inputs)]
    found += [module_network(plain, inputs, ReadOptions(**{name: torch.bfloat16})) for name in ("amp", "dtype")]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found.append(module_network(plain, inputs))
    assert [{layer.problem.dtype for layer in each.layers if layer.problem.multiply_adds} for each in found] == [
        {"bf16"}
    ] * 4
    with torch.autocast("cuda", enabled=False), refused("give amp bf16"):
        module_network(plain, inputs)


def test_products_run_in_tf32_where_torch_is_set_so() -> None:
    """On a GPU that has it, which the headline says."""
    from surrogate.network import time_module

    asked = torch.nn.Linear(4096, 4096), torch.zeros(4096, 4096)
    plain = time_module(*asked, "h100-sxm")
    torch.set_float32_matmul_precision("high")
    try:
        tf32, older = (time_module(*asked, name) for name in ("h100-sxm", "t4"))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert tf32.total_us < plain.total_us / 2 and "TF32" not in older.headline()
    assert "products TF32" in tf32.headline() and "products fp32" in plain.headline()


def test_autocast_is_for_modules_in_their_own_type(refused) -> None:
    for source, settings in (("resnet18", {}), (f"{MODULES}:mixed", {"dtype": "bf16"})):
        with refused("--amp"):
            read_network(source, amp="fp16", **settings)
