"""How far off are training steps of image networks and of BERT, on families of networks that no constant saw?

Measured steps of timm (RTX 3090, autocast to fp16) and of NVIDIA (A100 and V100; fp32, TF32 and autocast) are compared
with predictions. ``python -c "from experiments.training_steps import fit; fit()"`` fits the constants of gradients to
timm's steps of half of its modules, the half of `experiments.image_networks`. All other modules are held out of every
constant. All of these steps ran, so a prediction that one of them does not fit is an error.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from experiments.experiment import HOME, Effort, ExperimentResult, program
from experiments.image_networks import crc, fitted, predictors_of, stacked
from experiments.small_networks import restored
from experiments.sources import Sources, own_settings
from surrogate import bundled, gpu
from surrogate.dataset.files import write_text
from surrogate.features.analytical import TensorCoreModel
from surrogate.network.dispatch import add_call
from surrogate.network.network import Layer, Network, NetworkBuilder, ReadOptions
from surrogate.network.optimizers import TrainedWeight, optimizer_step, total_state_bytes
from surrogate.network.runtime import with_options, with_runtime
from surrogate.prediction.sources.datasheet import FILE, HALVES, STEP as STEP_ERRORS
from surrogate.report.charts import dots

STEP = ["model", "layout", "batch", "size", "amp"]
"""Columns of a step; ``size`` is the width of an image or the length of a sequence."""
BERT = "bert_large"
NCHW = "NCHW"
AMP = "amp"
TF32 = ("products", "convolutions")
FITTED_GPU = "rtx-3090"
FOLDS = 4
"""Number of folds by module whose errors determine the intervals of steps."""
FITTED: dict[str, float] = own_settings(__file__)
"""Constants of gradients and of norms by the batch's statistics → start value."""
MAX_PARAMETER_DIFFERENCE = 0.01
"""Maximum relative difference of the parameters to the measured network's. timm has changed some networks since."""
CHANGED = ("tresnet",)
"""Modules whose networks timm has changed since: TResNet had norms of the library ``inplace_abn``."""
FAMILIES = {True: "never seen", False: "fitted"}


def measured(folder: Path = HOME / "data") -> pd.DataFrame:
    """Return the measured steps: `STEP`, ``gpu gpus precision parameters_m measured_ms``."""
    timm = pd.read_parquet(folder / "networks_timm_training.parquet").rename(columns={"image": "size"})
    timm = timm.assign(gpus=1, precision=AMP, measured_ms=timm["step_ms"])
    nvidia = pd.read_csv(folder / "training_nvidia_examples.csv").rename(columns={"batch_per_gpu": "batch"})
    nvidia["measured_ms"] = 1e3 * nvidia["batch"] * nvidia["gpus"] / nvidia["samples_per_s"]
    nvidia = nvidia.assign(size=nvidia["sequence"].fillna(224).astype(int), layout=nvidia["layout"].fillna(NCHW))
    table = pd.concat([timm, nvidia], ignore_index=True)
    table["amp"] = np.where(table["precision"] == AMP, "fp16", "")
    table["gpu"] = table["gpu"].map({name: gpu(name).name for name in table["gpu"].unique()})
    return table[[*STEP, "gpu", "gpus", "precision", "parameters_m", "measured_ms"]]


@cache
def recorded(path: Path) -> pd.DataFrame:
    """Return the recorded steps, with `STEP` as the index, as `experiments.training_calls` wrote them."""
    return pd.read_parquet(path).set_index(STEP)


def read(step: pd.Series, optimizer: str) -> Network:
    """Return the network of a recorded step, with the step of the optimizer."""
    model, _, batch, _, _ = cast("tuple[str, str, int, int, str]", step.name)
    passes: tuple[list[Layer], list[Layer]] = ([], [])
    ignored: Counter[str] = Counter()
    unsupported: Counter[str] = Counter()
    for line in step["calls"].split("\n"):
        forward, backward, call = line.split(" ", 2)
        builder = NetworkBuilder()
        add_call(restored(call), builder, training=True)
        for layers, count in zip(passes, (int(forward), int(backward)), strict=True):
            layers += builder.layers * count
            for total, found in ((ignored, builder.ignored), (unsupported, builder.unsupported)):
                total.update({name: count * number for name, number in found.items()})
    weights = [TrainedWeight((int(step["parameters"]),))]
    layers = (*passes[0], *passes[1], *optimizer_step(weights, optimizer))
    memory: dict[str, Any] = {
        name: int(step[name]) for name in step.index if name.endswith("_bytes") and name != "reserved_bytes"
    }
    return Network(
        name=model,
        layers=layers,
        batch=batch,
        training=True,
        ignored=dict(ignored),
        unsupported=dict(unsupported),
        parameters=int(step["parameters"]),
        state_bytes=total_state_bytes(weights, optimizer, "fp32"),
        forward_layers=len(passes[0]),
        **memory,
    )


def kind_of(network: Network) -> str:
    """Return the kind of a network: by its convolutions if they have most of its work, else by its softmaxes."""
    work = {layer.problem: layer.problem.multiply_adds for layer in network.layers}
    convs = Counter(network.convs)
    convolved = sum(work[conv] * count for conv, count in convs.items())
    if convolved < 0.5 * sum(work[layer.problem] for layer in network.layers):
        rows = sum(layer.problem.kind in ("softmax", "attention") for layer in network.layers)
        return "transformer" if rows > 2 else "perceptron"
    if sum(count for conv, count in convs.items() if conv.groups == conv.c > 1) > 0.15 * len(network.convs):
        return "depthwise"
    grouped = sum(work[conv] * count for conv, count in convs.items() if conv.groups > 1)
    return "grouped" if grouped > 0.1 * convolved else "dense"


def steps(folder: Path = HOME / "data", limit: int | None = None) -> tuple[pd.DataFrame, list[Network]]:
    """Return the measured steps with ``module``, ``kind`` and ``families``, and their networks."""
    calls = recorded(folder / "training_calls.parquet")
    table = measured(folder)
    table = table[[key in calls.index for key in table[STEP].itertuples(index=False, name=None)]]
    table = table if limit is None else table.sample(limit, random_state=0).sort_index()
    found, networks = [], []
    for row in table.to_dict("records"):
        step = calls.loc[tuple(row[name] for name in STEP)]
        # NVIDIA's table does not state the parameters.
        difference = abs(step["parameters"] / 1e6 / row["parameters_m"] - 1)
        if difference > MAX_PARAMETER_DIFFERENCE or step["module"] in CHANGED:
            continue
        network = read(step, "adam" if row["model"] == BERT else "sgd-momentum")
        network = with_options(network, ReadOptions(training=True, data_parallel=int(row["gpus"])))
        networks.append(with_runtime(replace(network, tf32=TF32 if row["precision"] == "tf32" else ())))
        found.append(row | {"module": step["module"], "kind": kind_of(network)})
    known = pd.DataFrame(found)
    return known.assign(families=(known["module"].map(crc) % 2 == 1).map(FAMILIES)), networks


def rows(folder: Path = HOME / "data", limit: int | None = None) -> pd.DataFrame:
    """Return the measured steps with their predictions in ms, and ``fits``."""
    table, networks = steps(folder, limit)
    times = [predictors_of(str(name)).time(network) for name, network in zip(table["gpu"], networks, strict=True)]
    ends = {"predicted_ms": "total_us", "lower_ms": "lower_us", "upper_ms": "upper_us"}
    predicted = {name: [getattr(time, end) / 1e3 for time in times] for name, end in ends.items()}
    return table.assign(**predicted, fits=[bool(time.fits) for time in times])


def fit(folder: Path = HOME / "data") -> None:
    """Fit `FITTED` to timm's steps of the fitted half of the modules, and write the shipped constants."""
    table, networks = steps(folder)
    taken = ((table["gpu"] == FITTED_GPU) & (table["families"] == FAMILIES[False])).to_numpy()
    chosen = [network for network, is_taken in zip(networks, taken, strict=True) if is_taken]
    passes = stacked(chosen, [predictors_of(FITTED_GPU)] * len(chosen))
    models = json.loads((bundled.FOLDER / FILE).read_bytes())
    start = TensorCoreModel(**models[HALVES]["law"] | FITTED)
    measured_ms, module = table.loc[taken, "measured_ms"], table.loc[taken, "module"]
    fold = module.map(crc).to_numpy() // 2 % FOLDS
    error = np.zeros(len(chosen))
    for index in range(FOLDS):
        holdout = fold == index
        time_us = passes.kernels_us(fitted(passes, ~holdout, measured_ms, start, FITTED))
        error[holdout] = np.abs(np.log(time_us / 1e3 / measured_ms.to_numpy()))[holdout]
    model = fitted(passes, fold < FOLDS, measured_ms, start, FITTED)
    median, half_width = np.quantile(error, [0.5, 0.9]).round(3).tolist()
    models[HALVES]["law"] = asdict(model)
    models[HALVES]["by_kind"][STEP_ERRORS] = {"gpus": 1, "median_ape": median, "half_width": half_width}
    write_text(bundled.FOLDER / FILE, json.dumps(models, indent=1) + "\n")
    print({name: getattr(model, name) for name in FITTED}, median, half_width)


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """Return errors, coverage and the steps called too large, by families and by GPU, layout, kind and number of
    GPUs."""
    groups = [(["families", "layout"], "layout"), (["families", "kind", "layout"], "kind")]
    single = table[table["gpu"] == FITTED_GPU]
    parts = [(single, columns, name) for columns, name in groups]
    return judged_by([*parts, (table[table["gpu"] != FITTED_GPU], ["gpu", "precision", "gpus"], "gpu")])


def judged_by(parts: Sequence[tuple[pd.DataFrame, list[str], str]]) -> pd.DataFrame:
    """Return errors, coverage and the steps called too large; a part is its steps, the columns of groups, and a
    name."""
    records = []
    for part, columns, name in parts:
        for key, group in part.groupby(columns):
            ratio = group["predicted_ms"] / group["measured_ms"]
            error = (ratio - 1).abs()
            inside = group["measured_ms"].between(group["lower_ms"], group["upper_ms"])
            record = {"by": name, "group": ", ".join(map(str, key)), "n": len(group)}
            record |= {"median_error_pct": 100 * error.median(), "p90_error_pct": 100 * error.quantile(0.9)}
            record |= {"bias_pct": 100 * (ratio.median() - 1), "coverage_pct": 100 * inside.mean()}
            records.append(record | {"too_large_pct": 100 * (1 - group["fits"].astype(float).mean())})
    return pd.DataFrame(records)


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Return errors, coverage and memory by families, layout, kind of network and GPU."""
    table = judged(rows(sources.folder, 60 if effort.quick else None))
    figure = dots(table, "group", "by", "median_error_pct", "median error of the step, %")
    return ExperimentResult(table, figure)


EXPERIMENT = program(run, "timm_training", "nvidia_training", "training_calls")
