"""The memory format channels_last: such modules run in NHWC, and mixed formats add transposes."""

from pathlib import Path
from typing import Any

import pytest

from surrogate.features.conv import Conv
from surrogate.network.exported import read_exported
from surrogate.network.network import Network, ReadOptions
from surrogate.network.runtime import with_options
from surrogate.network.torch_module import module_network

torch = pytest.importorskip("torch")
LAST = torch.channels_last


def read(*, module_last: bool = False, input_last: bool = False, training: bool = False) -> Network:
    """Return a network of two convolutions with a group norm between them."""
    convs = torch.nn.Conv2d(8, 16, 3, bias=False), torch.nn.Conv2d(16, 4, 1, bias=False)
    module = torch.nn.Sequential(convs[0], torch.nn.GroupNorm(4, 16), convs[1])
    values = torch.zeros(2, 8, 20, 20)
    module = module.to(memory_format=LAST) if module_last else module
    values = values.to(memory_format=LAST) if input_last else values
    return module_network(module, values, ReadOptions(training=training))


def layouts(network: Network) -> list[str]:
    return [conv.layout for conv in network.convs]


def transposes(network: Network) -> list[str]:
    """Return the names of the transposes."""
    return [layer.operator for layer in network.layers if layer.problem.kind == "layout_transform"]


def test_one_memory_format_needs_no_transpose_of_convolutions() -> None:
    """The group norm of CUDA takes only NCHW; the format after it depends on the release of torch."""
    default = read()
    assert layouts(default) == ["NCHW", "NCHW"] and not transposes(default)
    last = read(module_last=True, input_last=True)
    assert layouts(last)[0] == "NHWC"
    assert transposes(last) == ["native_group_norm.nchw"]


def test_an_option_has_the_layers_of_a_module_in_its_layout() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16))
    values = torch.zeros(2, 8, 20, 20)
    options = ReadOptions(training=True, layout="NHWC")
    last = module_network(module.to(memory_format=LAST), values.to(memory_format=LAST), options)
    network = with_options(module_network(module.to(memory_format=torch.contiguous_format), values, options), options)
    norms = [layer.problem for layer in network.layers if "batch_norm" in layer.operator]
    assert norms == [layer.problem for layer in last.layers if "batch_norm" in layer.operator] and len(norms) == 2
    assert {norm.variant for norm in norms} == {"NHWC"} and set(layouts(network)) == {"NHWC"}


def test_mixed_memory_formats_add_transposes() -> None:
    """The input is transposed for a module in NHWC, and the filter for an input in NHWC."""
    module = read(module_last=True)
    assert (layouts(module)[0], transposes(module)[0]) == ("NHWC", "convolution.input.nhwc")
    values = read(input_last=True)
    assert (layouts(values)[0], transposes(values)[0]) == ("NHWC", "convolution.weight.nhwc")
    (first, *_) = [layer for layer in module.layers if layer.problem.kind == "layout_transform"]
    assert first.problem.dram_bytes == 2 * 4 * 2 * 8 * 20 * 20
    trained = read(module_last=True, input_last=True, training=True)
    assert [conv.layout for conv in trained.convs if conv.direction == "bwd_filter"][-1] == "NHWC"


def test_a_change_of_memory_format_is_a_transpose() -> None:
    class Changing(torch.nn.Module):
        def forward(self, values: Any) -> Any:
            return values.contiguous(memory_format=LAST).clone()

    found = module_network(Changing(), torch.zeros(2, 8, 20, 20))
    assert [layer.problem.kind for layer in found.layers] == ["layout_transform", "copy"]


@pytest.mark.filterwarnings("ignore:No complete tensor:UserWarning")
def test_an_exported_program_keeps_its_memory_format(tmp_path: Path) -> None:
    module = torch.nn.Conv2d(8, 16, 3, bias=False).to(memory_format=LAST)
    program = torch.export.export(module.eval(), (torch.zeros(2, 8, 20, 20).to(memory_format=LAST),))
    torch.export.save(program, tmp_path / "last.pt2")
    found = read_exported(tmp_path / "last.pt2")
    assert found.convs == (Conv(n=2, c=8, h=20, k=16, r=3, layout="NHWC"),)
