"""Record the ATen calls of measured training steps. `experiments.training_steps` reads them instead of the networks.

``python -m experiments.training_calls`` runs timm's image networks and transformers' BERT on fake tensors, as the
measured programs run them: autocast around the forward pass, the loss, and attention as separate products. It writes
the table. The script needs torch, timm and transformers, but no GPU, and takes about an hour.
"""

from collections import Counter
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pandas as pd

from experiments.experiment import HOME
from experiments.small_networks import stored
from experiments.training_steps import BERT, STEP, measured
from surrogate.dataset.files import atomic_path
from surrogate.network.aten_call import Call
from surrogate.network.network import ReadOptions
from surrogate.network.torch_recording import Arguments, Recording, record_calls

if TYPE_CHECKING:
    from torch.nn import Module

CALLS = HOME / "data" / "training_calls.parquet"
MEMORY = ("activation_bytes", "gradient_bytes", "rounding_bytes")
"""Fields of `Network` on the memory of one GPU."""


def record(step: Any) -> dict[str, Any]:
    """Return what is stored of a step, a tuple with the fields `STEP`: its distinct calls with their counts, and its
    memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    model = _bert(fake) if step.model == BERT else _image_network(step, fake)
    model.train()
    with fake:
        recorded = record_calls(model, _inputs(step), ReadOptions(training=True, amp=step.amp or None))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    peak = recorded.allocator.peak_fields(recorded.persistent_bytes)
    return {
        **step._asdict(),
        "calls": _counted(recorded),
        "tensors": len(weights),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "weights_bytes": sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers())),
        **{name: peak[name] for name in MEMORY},
        "reserved_bytes": recorded.allocator.reserved - recorded.allocator.peak,
    }


def _counted(recorded: Recording) -> str:
    """Return a line for each distinct call: its numbers of repetitions forward and backward, and the call."""
    passes = [Counter(map(_line, each)) for each in (recorded.forward, recorded.backward)]
    calls = dict.fromkeys([*passes[0], *passes[1]])
    return "\n".join(f"{passes[0][call]} {passes[1][call]} {call}" for call in calls if call)


def _line(call: Call) -> str:
    """Return a call as JSON without its name and its absent arguments; "" for a question to Python."""
    arguments = {name: value for name, value in call.arguments.items() if value is not None}
    return "" if call.op.startswith("prim.") else stored(Call(call.op, arguments, call.outputs))


def _image_network(step: Any, fake: Any) -> "Module":
    """Return timm's network with its loss, on fake tensors; its weights have the layout of the step."""
    import timm
    import torch
    from timm.layers import set_fused_attn

    set_fused_attn(False)
    with torch.device("meta"):
        network = timm.create_model(step.model)
    weights: dict[int, torch.Tensor] = {}  # identity of a weight → its copy: layers may share a weight
    for part in network.modules():
        for named in (part._parameters, part._buffers):
            for key, value in named.items():
                if value is not None:
                    with fake:
                        copied = torch.empty(value.shape, dtype=value.dtype)
                        if step.layout == "NHWC" and value.dim() == 4:
                            copied = copied.contiguous(memory_format=torch.channels_last)
                    trained = isinstance(value, torch.nn.Parameter)
                    copied = torch.nn.Parameter(copied, value.requires_grad) if trained else copied
                    named[key] = weights.setdefault(id(value), copied)
    return _with_loss(network)


def _bert(fake: Any) -> "Module":
    """Return BERT-large for questions, with attention as separate products."""
    transformers: Any = import_module("transformers")  # the library, not the experiment of this name
    config = transformers.BertConfig(
        vocab_size=30528, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    config._attn_implementation = "eager"
    with fake:
        return transformers.BertForQuestionAnswering(config)


def _with_loss(network: "Module") -> "Module":
    """Return a module of the network and the loss that timm's benchmark computes."""
    import torch

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, images: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            result = self.network(images)
            result = result[0] if isinstance(result, tuple | list) else result
            return torch.nn.functional.cross_entropy(result, target)

    return WithLoss()


def _inputs(step: Any) -> Arguments:
    """Return images and their classes, or the tokens, the mask, the types and the ends of answers."""
    import torch

    def numbers(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64)

    if step.model == BERT:
        tokens = numbers(step.batch, step.size)
        names = ("input_ids", "attention_mask", "token_type_ids")
        ends = dict.fromkeys(("start_positions", "end_positions"), numbers(step.batch))
        return Arguments((), {**dict.fromkeys(names, tokens), **ends})
    images = torch.empty(step.batch, 3, step.size, step.size)
    if step.layout == "NHWC":
        images = images.contiguous(memory_format=torch.channels_last)
    return Arguments((images, numbers(step.batch)), {})


@click.command(help=str(__doc__).split("\n")[0])
@click.option("-o", "--output", default=CALLS, type=click.Path(path_type=Path), help="The table to write.")
def main(output: Path) -> None:
    """Record the steps and write the table, with the module in which timm defines each network."""
    from timm.models._registry import _model_to_module

    rows = []
    for step in measured()[STEP].drop_duplicates().itertuples(index=False):
        try:
            rows.append(record(step))
        except Exception as error:
            click.echo(f"{step}: skipped, {type(error).__name__}: {str(error)[:300]}", err=True)
    table = pd.DataFrame(rows).sort_values(STEP, ignore_index=True)
    table = table.assign(module=table["model"].map(_model_to_module).fillna("bert"))
    table.attrs = {"torch": version("torch"), "timm": version("timm")}
    with atomic_path(output) as temporary:
        # One page, so that the compression finds the calls that networks of a family share.
        table.to_parquet(
            temporary, compression="zstd", compression_level=19, data_page_size=2**30, use_dictionary=False, index=False
        )
    click.echo(f"{output}: {len(table):,} steps")


if __name__ == "__main__":
    main()
