"""How far off are predicted times of whole networks, on GPUs measured and on GPUs left out of all training?

Measured passes of whole networks beside what this package and published predictors say of them. No pass trained or
tuned anything: models see isolated operators alone. The transformers' GPUs are left out of the operators' training one
after another, too, and the operators over 100 µs that were measured there are judged beside the passes.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from inspect import signature
from itertools import pairwise

import numpy as np
import pandas as pd

from experiments.drawing import dots
from experiments.experiment import Effort, Experiment, Outcome, run_script
from experiments.operator_tables import read_operator_tables
from experiments.sources import Sources
from experiments.transformers import transformer
from experiments.verdicts import percent
from surrogate.bundle.bundle import Bundle, Part, load
from surrogate.bundled import FOLDER
from surrogate.dataset.problems import device_names
from surrogate.dataset.rows import Rows, rows_by_family
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu, gpu
from surrogate.models import DEFAULT_MODEL, TimeModel
from surrogate.models.base import duplicate
from surrogate.network.architectures.onnx_graphs import onnx_model
from surrogate.network.network import Network
from surrogate.network.onnx_reader import read_onnx
from surrogate.network.predict import Predictors, load_predictors
from surrogate.network.result import NetworkTime
from surrogate.network.training import OPTIMIZER, iteration
from surrogate.prediction.predictor import Predictor

SETS = {
    "transformers": "experiments.whole_networks:transformer_passes",
    "torch7": "experiments.whole_networks:torch7_passes",
}
"""Set of measured networks → ``module:function`` that gives its frame: a row a pass, with ``network gpu phase
measured_ms predicted_ms lower_ms upper_ms``, published predictors' times as further columns in ms, and ``training`` where
one set holds several answers. The function takes nothing, or the sources and the effort."""
OWN, KEYS = "predicted_ms", ("set", "training", "gpu")
PUBLISHED = ("neusight", "habitat", "micro", "roofline")
SEEN, LEFT_OUT, SHIPPED = "GPU measured", "GPU left out", "as shipped"
OPERATORS = ("other_ops", "scope_ops", "dense", "deepbench")
LONG_US = 100.0
TORCH7 = {
    "alexnet": "alexnet", "vgg16": "vgg16", "vgg19": "vgg19", "googlenet-v1": "inception_v1",
    "resnet-18": "resnet18", "resnet-34": "resnet34", "resnet-50": "resnet50", "resnet-101": "resnet101",
    "resnet-152": "resnet152", "resnet-200": "resnet200",
}  # fmt: skip
"""The benchmark's name → ours. Its AlexNet and GoogLeNet differ in details (groups, classifiers)."""
FIRST_CUDNN = 5000


def run(sources: Sources, effort: Effort) -> Outcome:
    """Per set, GPU and predictor: errors over its passes, and how often the intervals hold them."""
    tables = []
    for name in effort.only or tuple(SETS):
        module, function = SETS[name].split(":")
        rows: Callable[..., pd.DataFrame] = getattr(import_module(module), function)
        frame = rows(sources, effort) if signature(rows).parameters else rows()
        tables.append(judged(frame.assign(set=frame["set"] if "set" in frame else name)))
    table = pd.concat(tables, ignore_index=True)
    shown = table[table["gpu"] != "all"]
    shown = shown.assign(name=shown["set"] + ", " + shown["training"] + ": " + shown["gpu"])
    figure = dots(shown, "name", "predictor", "mean_error_pct", "mean error of whole passes, %", log=True)
    return Outcome(table, figure, answer(table))


def judged(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean and median absolute error, mean error and coverage per set, training, GPU (and all of them), predictor."""
    frame = frame.assign(training=frame["training"] if "training" in frame else SHIPPED)
    columns = {OWN: "ours"} | {
        c: c[:-3]
        for c in frame
        if c.endswith("_ms") and c not in (OWN, "measured_ms", "lower_ms", "upper_ms")
    }
    records = []
    for each in (frame, frame.assign(gpu="all")):
        for key, part in each.groupby(list(KEYS), sort=True):
            for column, name in columns.items():
                error = 100 * (part[column] / part["measured_ms"] - 1).dropna()
                if len(error):
                    record = {"predictor": name, "n": len(error), "mean_error_pct": error.abs().mean()}
                    record |= {"median_error_pct": error.abs().median(), "bias_pct": error.mean()}
                    if column == OWN and part["lower_ms"].notna().all():
                        inside = part["measured_ms"].between(part["lower_ms"], part["upper_ms"])
                        record["coverage_pct"] = 100 * inside.mean()
                    records.append(dict(zip(KEYS, key, strict=True)) | record)
    return pd.DataFrame(records)


def transformer_passes(sources: Sources, effort: Effort) -> pd.DataFrame:
    """The transformers of NeuSight whose configurations are known, on one GPU each: by the bundle that ships, and by its
    models fitted without the GPU; and the left-out GPU's own operators.

    The intervals of a GPU left out are wide by the shipped factor, in whose calibration the GPU was one of several.
    """
    shipped = load(FOLDER / "operators")
    tables = rows_by_family(read_operator_tables([sources.path(name) for name in OPERATORS]))
    frame, folder = pd.read_parquet(sources.path("transformers")), sources.path("configs")
    known = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    frame = frame[
        frame["model"].isin(list(known)) & (frame["variant"].isna() | (frame["variant"] == "fusion"))
    ]
    networks = {
        row["config"]: transformer(
            row["config"], known[row["model"]], int(row["sequence"]), int(row["batch"]),
            training=row["mode"] == "train", fused=row["variant"] == "fusion",
        )
        for row in frame.to_dict("records")
    }  # fmt: skip
    records, operators = [], []
    for name, part in frame.groupby("gpu"):
        device = gpu(str(name))
        effort.tick(f"without {device.name}")
        other, errors = without(
            shipped, {kind.name: rows for kind, (_, rows) in tables.items()}, device, effort
        )
        operators.append(errors)
        for training, bundle in ((SEEN, shipped), (LEFT_OUT, other)):
            predictors = Predictors(device, None, Predictor(bundle, gpu=device.name))
            for row in part.to_dict("records"):
                times = _milliseconds(predictors.time(networks[row["config"]]))
                published = {f"{name}_ms": row[f"{name}_ms"] for name in PUBLISHED}
                facts = {"network": row["config"], "gpu": device.name, "phase": row["mode"]}
                measured = {"measured_ms": row["measured_ms"], "training": training, "set": "transformers"}
                records.append(facts | measured | times | published)
    return pd.concat([pd.DataFrame(records), *operators], ignore_index=True)


def without(
    bundle: Bundle, tables: dict[str, Rows], device: Gpu, effort: Effort
) -> tuple[Bundle, pd.DataFrame]:
    """The bundle with its models fitted without a GPU, and their times of that GPU's operators over `LONG_US`."""
    parts, errors = {}, []
    for name, rows in tables.items():
        own = device_names(rows.frame) == device.name
        model = duplicate(effort.named(DEFAULT_MODEL)[DEFAULT_MODEL]).fit(rows.take(~own))
        parts[name] = _part_without(bundle.parts[name], model, device.name)
        long = rows.take(own & rows.ok & (rows.time_us > LONG_US))
        if len(long):
            predicted = {"measured_ms": long.time_us / 1e3, "predicted_ms": model.predict(long) / 1e3}
            errors.append(pd.DataFrame(predicted).assign(network=name, set=f"{name} over 100 µs"))
    launches = {key: value for key, value in bundle.launches.items() if not key.startswith(f"{device.name}|")}
    table = pd.concat(errors) if errors else pd.DataFrame()
    return replace(bundle, parts=parts, launches=launches), table.assign(gpu=device.name, training=LEFT_OUT)


def _part_without(part: Part, model: TimeModel, name: str) -> Part:
    """The part as if no row of the GPU had been there."""

    def kept(known: dict[str, float]) -> dict[str, float]:
        return {key: value for key, value in known.items() if not key.startswith(f"{name}|")}

    settings = frozenset(text for text in part.domain.settings if not text.startswith(f"{name}|"))
    return replace(
        part,
        fitted=model,
        domain=replace(part.domain, settings=settings),
        row_counts=kept(dict(part.row_counts)),
        least_us=kept(dict(part.least_us)),
    )


def _milliseconds(time: NetworkTime) -> dict[str, float]:
    return {
        name: us / 1e3
        for name, us in (
            (OWN, time.total_us),
            ("lower_ms", time.lower_us),
            ("upper_ms", time.upper_us),
        )
    }


def torch7_passes(sources: Sources) -> pd.DataFrame:
    """Torch7 with cuDNN 5 or later, forward and backward, by what ships: cuDNN 7 on other GPUs."""
    frame = pd.read_csv(sources.path("end_to_end"))
    version = pd.to_numeric(frame["cudnn"], errors="coerce")
    frame = frame[(frame["use_cudnn"] == 1) & frame["model"].isin(list(TORCH7)) & (version >= FIRST_CUDNN)]
    if frame.empty:
        raise InputError("the end-to-end table has no row with cuDNN 5 or later; give one that has")
    records = []
    for (model, batch), part in frame.groupby(["model", "batch"]):
        graph = onnx_model(TORCH7[str(model)])
        forward = read_onnx(str(model), batch=int(str(batch)), model=graph)
        for row in part.to_dict("records"):
            predictors = load_predictors(row["gpu"])
            for phase, column, network in zip(
                ("forward", "backward"), ("fwd_ms", "bwd_ms"), _passes(forward), strict=True
            ):
                facts = {
                    "network": model,
                    "gpu": predictors.gpu.name,
                    "phase": phase,
                    "measured_ms": row[column],
                }
                records.append(facts | _milliseconds(predictors.time(network)))
    return pd.DataFrame(records)


def _passes(forward: Network) -> Iterator[Network]:
    """The forward and the backward pass of an iteration, without the optimizer's step."""
    layers = tuple(layer for layer in iteration(forward).layers if layer.operator != OPTIMIZER)
    for begin, end in pairwise((0, len(forward.layers), len(layers))):
        yield replace(forward, layers=layers[begin:end], training=True)


def answer(table: pd.DataFrame) -> str:
    """Per set and training the mean errors of all predictors, and how many GPUs and passes that covers."""
    texts = []
    for (name, training), part in table.groupby(["set", "training"], sort=False):
        gpus = part[(part["gpu"] != "all") & (part["predictor"] == "ours")]
        whole = part[part["gpu"] == "all"].set_index("predictor")
        ours = whole.loc["ours"]
        others = [
            f"{other} {percent(row['mean_error_pct'])}" for other, row in whole.iterrows() if other != "ours"
        ]
        worst = gpus.loc[gpus["mean_error_pct"].idxmax()]
        covered = (
            f", intervals hold {percent(ours['coverage_pct'])}"
            if np.isfinite(ours.get("coverage_pct", np.nan))
            else ""
        )
        texts.append(
            f"{name}, {training} ({len(gpus)} GPUs, {ours['n']:.0f} times): mean error {percent(ours['mean_error_pct'])}"
            f" (worst {worst['gpu']} {percent(worst['mean_error_pct'])}){covered}"
            + (f"; {', '.join(others)}" if others else "")
        )
    return ". ".join(texts) + "."


EXPERIMENT = Experiment.of(run, ("transformers", "configs", "end_to_end", *OPERATORS))

if __name__ == "__main__":
    run_script(EXPERIMENT, choices=tuple(SETS))
