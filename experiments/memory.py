"""Compare the predicted peak memory of training iterations with torch's own tracker.

``python -m experiments.memory`` runs small networks on fake tensors: as modules in fp32 and under autocast to bf16, and
as exported programs, with SGD and Adam. It compares the bytes of `surrogate.network.memory` with the bytes that torch's
`MemTracker` counts. It also compares the memory left for a server's KV cache with vLLM's logs. A run takes 15 minutes.
It needs torch, timm and transformers, but no GPU.
"""

import json
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.experiment import HOME
from experiments.sources import own_settings
from surrogate.bundled import NETWORKS
from surrogate.features.gpu import gpu
from surrogate.network.exported import read_exported
from surrogate.network.language import Deployment
from surrogate.network.language_step import read_language
from surrogate.network.memory import memory, usable_bytes
from surrogate.network.network import Network, ReadOptions
from surrogate.network.torch_gpu import dispatched_as_on_gpu
from surrogate.network.torch_module import module_network
from surrogate.network.training import with_training

if TYPE_CHECKING:
    from torch import nn

    Built = tuple[nn.Module, tuple[Any, ...]]

TABLE, SERVED_TABLE = (HOME / "tables" / f"{name}.csv" for name in ("memory", "memory_served"))
MODULES = own_settings(__file__)
"""The networks to read.

- ``images``: timm's models with their batch.
- ``language``: transformers' classes by ``model_type``, with the sizes of a small model.
- ``perceptrons``: width and batch.
- ``runs``: the runs of each network.
"""


def _image(name: str, batch: int) -> "Built":
    import timm
    import torch

    return timm.create_model(name), (torch.zeros(batch, 3, 224, 224),)


def _language(kind: str) -> "Built":
    import torch

    transformers: Any = import_module("transformers")
    cls, sizes = MODULES["language"][kind]
    config = transformers.AutoConfig.for_model(kind, **sizes, use_cache=False)
    tokens = torch.zeros((8, 256), dtype=torch.int64)
    return getattr(transformers, cls).from_config(config), (tokens, None, tokens) if kind == "t5" else (tokens,)


def _perceptron(width: int, batch: int) -> "Built":
    import torch
    from torch import nn

    layers = [each for _ in range(6) for each in (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(*layers), (torch.zeros(batch, width),)


def models() -> dict[str, "Callable[[], Built]"]:
    """Return name → function that builds the module."""
    images = {name: partial(_image, name, batch) for name, batch in MODULES["images"].items()}
    language = {kind: partial(_language, kind) for kind in MODULES["language"]}
    return images | language | {f"mlp {width}": partial(_perceptron, width, n) for width, n in MODULES["perceptrons"]}


def tracked_bytes(module: "nn.Module", inputs: tuple[Any, ...], amp: str | None, optimizer: str) -> int:
    """Return the bytes at the peak of an iteration by torch's tracker, with gradients, and Adam's states for "adam"."""
    import copy

    import torch
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.utils._pytree import tree_leaves

    with FakeCopyMode(fake := FakeTensorMode(allow_non_fake_inputs=True)):
        module, inputs = copy.deepcopy((module, inputs))
    makers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    with fake:
        step = makers[optimizer](module.parameters(), lr=1e-3, fused=True)
        tracker = MemTracker()
        tracker.track_external(module, step, *(each for each in inputs if each is not None))
        for _ in range(2 if optimizer == "adam" else 1):
            with tracker:
                with dispatched_as_on_gpu(amp):
                    result = module(*inputs)
                leaves = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad]
                torch.stack([each.float().sum() for each in leaves]).sum().backward()
                del result, leaves
                step.step()
                step.zero_grad()
                tracker.reset_mod_stats()
    return next(iter(tracker.get_tracker_snapshot("peak").values()))["Total"]


def read(module: "nn.Module", inputs: tuple[Any, ...], source: str, amp: str | None) -> "tuple[Network, nn.Module]":
    """Return the network as it is read from its source, and the module that the source runs."""
    import torch

    if source == "module":
        return module_network(module, inputs, ReadOptions(training=True, amp=amp)), module
    program = torch.export.export(module, inputs)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "net.pt2"
        torch.export.save(program, path)
        return with_training(read_exported(path, ReadOptions(training=True)), True), program.module(check_guards=False)


def rows(names: tuple[str, ...] = ()) -> pd.DataFrame:
    """Return ``predicted_mib tracked_mib error_pct`` for each module, source and optimizer. ``names`` selects
    modules."""
    found = []
    for name, build in models().items():
        if names and name not in names:
            continue
        module, inputs = build()
        module.train()
        for run in MODULES["runs"]:
            source, amp = run["source"], run.get("amp")
            network, runs = read(module, inputs, source, amp)
            for optimizer in run["optimizers"]:
                state = network.state_bytes if optimizer == "adam" else 0
                predicted = (network.weights_bytes or 0) + (network.activation_bytes or 0) + state
                tracked = tracked_bytes(runs, inputs, amp, optimizer)
                found.append(
                    {
                        "module": name,
                        "source": source,
                        "arithmetic": f"amp {amp}" if amp else "fp32",
                        "optimizer": optimizer,
                        "predicted_mib": round(predicted / 2**20, 1),
                        "tracked_mib": round(tracked / 2**20, 1),
                        "error_pct": round(100 * (predicted / tracked - 1), 2),
                    }
                )
                print(*found[-1].values(), sep="  ", flush=True)
    return pd.DataFrame(found)


def served() -> pd.DataFrame:
    """Return for each log the GiB left for the KV cache of a GPU: predicted and logged.

    The prediction counts CUDA graphs (``graphs_gib``), as vLLM does since version 0.21. Logs of 2025 and before do not.
    """
    found = []
    for each in MODULES["served"]:
        ranks = each.get("tensor_parallel", 1)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(each.get("config", {})), encoding="utf-8")
            source = NETWORKS[each["network"]] if "network" in each else path
            spread = Deployment(dtype=each.get("dtype"), tensor_parallel=ranks)
            step = read_language(source, ReadOptions(decode=1), spread)
        device = gpu(each["gpu"])
        sizes = memory(step, 0, device)
        left = each["utilization"] * usable_bytes(device) - sum(sizes.values()) + sizes["state"]
        logged = each.get("kv_gib", each.get("kv_tokens", 0) * step.state_bytes / 2**30)
        found.append(
            {
                "model": each["model"],
                "gpu": each["gpu"],
                "tensor_parallel": ranks,
                "utilization": each["utilization"],
                "predicted_gib": round(left / 2**30, 2),
                "graphs_gib": round(sizes["graphs"] / 2**30, 2),
                "logged_gib": round(logged, 2),
                "source": each["source"],
            }
        )
    return pd.DataFrame(found)


def main() -> None:
    """Write both tables. Print the median and the largest error of peaks by source, and the errors of the KV cache."""
    warnings.simplefilter("ignore")
    left = served()
    left.to_csv(SERVED_TABLE, index=False)
    print(left.drop(columns="source").to_string(index=False))
    table = rows()
    table.to_csv(TABLE, index=False)
    errors = table["error_pct"].abs().groupby(table["source"])
    print(errors.agg(n="size", median="median", largest="max"))


if __name__ == "__main__":
    main()
