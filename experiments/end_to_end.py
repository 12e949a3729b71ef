"""Do predicted layers add up to measured passes of whole networks, on GPUs never measured?

Whole networks end to end, on GPUs and a cuDNN that training never saw: summed layers, measured passes.
"""

import numpy as np
import pandas as pd

from experiments.drawing import spreads
from experiments.experiment import Effort, Experiment, Outcome, run_script
from experiments.held_out import candidate_rows, least_us
from experiments.sources import Sources
from experiments.verdicts import percent
from surrogate.dataset.rows import rows_of
from surrogate.features.algorithms import algorithms
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.families import CONV
from surrogate.features.gpu import Gpu, gpu
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models import DEFAULT_MODEL, Support, TimeModel
from surrogate.network.architectures.onnx_graphs import onnx_model
from surrogate.network.network import Network
from surrogate.network.onnx_reader import read_onnx
from surrogate.network.training import OPTIMIZER, iteration

NETWORKS = {
    "alexnet": "alexnet", "vgg16": "vgg16", "vgg19": "vgg19", "googlenet-v1": "inception_v1",
    "resnet-18": "resnet18", "resnet-34": "resnet34", "resnet-50": "resnet50", "resnet-101": "resnet101",
    "resnet-152": "resnet152", "resnet-200": "resnet200",
}  # fmt: skip
"""The benchmark's name → ours. Its AlexNet and GoogLeNet differ in details (groups, classifiers)."""
TRAIN = {"dtype": "fp32", "layout": "NCHW", "math": "fma"}
VERSION = "7.6.3"
FIRST_CUDNN = 5000
PASSES = ("forward", "backward")


def run(sources: Sources, effort: Effort) -> Outcome:
    """Per network, GPU and cuDNN 5 version: both passes, raw and with an overhead learned from the other networks."""
    measured = passes(pd.read_csv(sources.path("end_to_end")))
    train = candidate_rows([sources.dataset(name, TRAIN) for name in ("cudnn", "partial")])
    effort.tick(DEFAULT_MODEL)
    model, support = effort.named(DEFAULT_MODEL)[DEFAULT_MODEL].fit(train), Support.fit(train)
    sums = []
    for (network, batch), part in measured.groupby(["network", "batch"], sort=True):
        made = onnx_model(NETWORKS[str(network)])
        forward = read_onnx(str(network), batch=int(str(batch)), model=made)
        for name in sorted(set(part["gpu"])):
            effort.tick(f"{network} on {name}")
            found = pass_times(forward, gpu(name), model, support)
            sums += [{"network": network, "batch": batch, "gpu": name, "pass": p, **found[p]} for p in PASSES]
    table = measured.merge(pd.DataFrame(sums), on=["network", "batch", "gpu", "pass"])
    table = with_overhead(table)
    return Outcome(table, _figure(table), answer(table))


def passes(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per network, GPU, cuDNN version and pass, measured with cuDNN 5 or later, times in µs."""
    kept = frame[
        (frame["use_cudnn"] == 1) & frame["model"].isin(list(NETWORKS)) & (frame["gpu"] != "cpu")
    ].copy()
    kept["cudnn"] = pd.to_numeric(kept["cudnn"], errors="coerce")
    kept = kept[kept["cudnn"] >= FIRST_CUDNN]
    if kept.empty:
        raise InputError("the end-to-end table has no row with cuDNN 5 or later; give one that has")
    parts = [
        kept.assign(network=kept["model"], measured_us=1e3 * kept[column], **{"pass": name})
        for name, column in zip(PASSES, ("fwd_ms", "bwd_ms"), strict=True)
    ]
    columns = ["network", "batch", "gpu", "cudnn", "pass", "measured_us"]
    return pd.concat(parts, ignore_index=True)[columns].sort_values(
        columns[:5], kind="stable", ignore_index=True
    )


def pass_times(
    forward: Network, device: Gpu, model: TimeModel, support: Support
) -> dict[str, dict[str, float]]:
    """Pass → sum of its layers in µs, how many kernels, and the convolutions' part.

    Operators other than convolutions take their roofline; the optimizer's step is in neither pass.
    """
    whole = iteration(forward)
    best = best_times(sorted(set(whole.convs), key=repr), device, model, support)
    split = len(forward.layers)
    found = {}
    for name, part in zip(PASSES, (whole.layers[:split], whole.layers[split:]), strict=True):
        kept = [layer.work for layer in part if layer.operator != OPTIMIZER]
        convs = sum(best[work] for work in kept if isinstance(work, Conv))
        rest = sum(float(work.roofline_us(device)) for work in kept if not isinstance(work, Conv))
        found[name] = {"kernels": len(kept), "convs_us": convs, "predicted_us": convs + rest}
    return found


def best_times(convs: list[Conv], device: Gpu, model: TimeModel, support: Support) -> dict[Conv, float]:
    """The fastest supported algorithm's predicted time in µs."""
    frame = pd.DataFrame(
        {
            **dict(zip(SIZE_COLUMNS, conv.sizes, strict=True)), "problem": place, "algorithm": one.name,
            "direction": conv.direction, "gpu": device.name, "library": "cudnn", "library_version": VERSION, **TRAIN,
        }
        for place, conv in enumerate(convs)
        for one in algorithms("cudnn", conv.direction)
        if one.implemented
    )  # fmt: skip
    rows = rows_of(frame, CONV)
    best = least_us(frame["problem"].to_numpy(), model.predict(rows), support.supported(rows))
    return dict(zip(convs, best.tolist(), strict=True))


def with_overhead(table: pd.DataFrame) -> pd.DataFrame:
    """Errors raw, with an overhead per kernel, and with a factor per GPU and cuDNN besides: both learned, per pass, as
    medians over the *other* networks."""
    table = table.assign(error_pct=100 * (table["predicted_us"] / table["measured_us"] - 1))
    overhead, scaled = np.full(len(table), np.nan), np.full(len(table), np.nan)
    for place, row in enumerate(table.to_dict("records")):
        others = table[(table["network"] != row["network"]) & (table["pass"] == row["pass"])]
        if others.empty:
            continue
        each = (others["measured_us"] - others["predicted_us"]) / others["kernels"]
        overhead[place] = max(0.0, float(each.median()))
        here = others[(others["gpu"] == row["gpu"]) & (others["cudnn"] == row["cudnn"])]
        if len(here):
            scaled[place] = float((here["measured_us"] / here["predicted_us"]).median())
    table["overhead_us_per_kernel"], table["factor"] = overhead, scaled
    added = table["predicted_us"] + overhead * table["kernels"]
    table["with_overhead_error_pct"] = 100 * (added / table["measured_us"] - 1)
    table["with_factor_error_pct"] = 100 * (table["predicted_us"] * scaled / table["measured_us"] - 1)
    return table


def answer(table: pd.DataFrame) -> str:
    """Median absolute errors per pass, raw and corrected."""

    def middle(column: str, name: str) -> str:
        return percent(table.loc[table["pass"] == name, column].abs().median())

    parts = "; ".join(
        f"{name} {middle('error_pct', name)} as summed, {middle('with_overhead_error_pct', name)} with an overhead per"
        f" kernel, {middle('with_factor_error_pct', name)} with a factor per GPU, both learned from the other networks"
        for name in PASSES
    )
    return (
        f"Torch7 with cuDNN 5 on GPUs that training never saw ({len(table)} passes), median error: {parts}."
        " Convolutions are predicted for cuDNN 7.6, other operators by their roofline."
    )


def _figure(table: pd.DataFrame) -> str | None:
    xlabel = "error of the summed layers, % (median, 10–90 % over GPUs)"
    return spreads(table, "network", "pass", "error_pct", xlabel)


EXPERIMENT = Experiment.of(run, ("cudnn", "partial", "end_to_end"))

if __name__ == "__main__":
    run_script(EXPERIMENT)
