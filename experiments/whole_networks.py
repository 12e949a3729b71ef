"""How far off are predicted times of whole networks, on GPUs measured and on GPUs left out of all training?

Measured passes of whole networks are compared with predictions of this package and with published predictors. No model
was fitted on a pass; models are fitted on isolated operators. The sustained rates of boards in ``gpus.toml`` were
chosen with the transformers' passes in view, so the figures are optimistic for other boards. The transformers' GPUs are
also held out of the operators' training, one after another. Their own operators over 100 µs are then judged.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from inspect import signature

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, program
from experiments.operator_tables import read_operator_tables
from experiments.sources import Sources, own_settings
from experiments.transformers import transformer
from surrogate import Bundle, Gpu, InputError, Predictor, gpu
from surrogate.bundle.bundle import StoredModel, load
from surrogate.bundled import FOLDER, NETWORKS
from surrogate.dataset.problems import device_names
from surrogate.dataset.rows import Rows, rows_by_family, rows_of
from surrogate.models import model_class
from surrogate.network import Network, NetworkTime, Predictors, load_predictors
from surrogate.network.network import ReadOptions
from surrogate.network.onnx_file import read_onnx
from surrogate.network.optimizers import OPTIMIZER
from surrogate.network.training import training_iteration
from surrogate.report.charts import dots

NAMES = own_settings(__file__)
SETS: Mapping[str, str] = NAMES["sets"]
"""Set of measured networks → ``module:function`` that returns a row for each pass.

The columns are ``network gpu phase measured_ms predicted_ms lower_ms upper_ms``, and one column in ms for each
published predictor. A set with several answers has a column ``training``. The function takes nothing, or the sources
and the effort.
"""
KEYS = ("set", "training", "gpu")
OWN, OURS, ALL = "predicted_ms", "ours", "all"
OWN_COLUMNS = (OWN, "measured_ms", "lower_ms", "upper_ms")
PUBLISHED = ("neusight_ms", "habitat_ms", "micro_ms", "roofline_ms")
SEEN, LEFT_OUT, SHIPPED = "GPU measured", "GPU left out", "as shipped"
OPERATORS = ("other_ops", "scope_ops", "dense", "deepbench")
LONG_US = 100.0
TORCH7: Mapping[str, str] = NAMES["torch7"]
FIRST_CUDNN = 5000


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Return errors over the passes and coverage of the intervals, per set, GPU and predictor."""
    tables = []
    for name in effort.only or tuple(SETS):
        module, function = SETS[name].split(":")
        rows: Callable[..., pd.DataFrame] = getattr(import_module(module), function)
        try:
            frame = rows(sources, effort) if len(signature(rows).parameters) == 2 else rows()
        except ModuleNotFoundError as error:
            if effort.only:
                raise InputError(f"{name} needs {error.name}, which is not installed") from None
            effort.tick(f"without {name}: {error.name} is not installed")
            continue
        tables.append(judged(frame.assign(set=frame.get("set", name))))
    table = pd.concat(tables, ignore_index=True)
    drawn = table[table["gpu"] != ALL]
    drawn = drawn.assign(name=drawn["set"] + ", " + drawn["training"] + ": " + drawn["gpu"])
    figure = dots(drawn, "name", "predictor", "mean_error_pct", "mean error of whole passes, %", log=True)
    return ExperimentResult(table, figure)


def judged(frame: pd.DataFrame) -> pd.DataFrame:
    """Return errors and coverage of every predictor per set, training and GPU, and over all GPUs, each on its own
    rows."""
    frame = frame.assign(training=frame.get("training", SHIPPED))
    others = [name for name in frame if str(name).endswith("_ms") and name not in OWN_COLUMNS]
    records = []
    for each in (frame, frame.assign(gpu=ALL)):
        for key, part in each.groupby(list(KEYS), sort=True):
            for column in (OWN, *map(str, others)):
                error = 100 * (part[column].astype(float) / part["measured_ms"] - 1).dropna()
                if error.empty:
                    continue
                size = error.abs()
                record = dict(zip(KEYS, key, strict=True)) | {"predictor": OURS if column == OWN else column[:-3]}
                record |= {"n": len(error), "mean_error_pct": size.mean(), "median_error_pct": size.median()}
                record |= {"bias_pct": error.mean(), "coverage_pct": np.nan}
                if column == OWN and part["lower_ms"].notna().all():
                    inside = part["measured_ms"].between(part["lower_ms"], part["upper_ms"])
                    record["coverage_pct"] = 100 * inside.mean()
                    record["claimed_factor"] = (part["upper_ms"] / part[OWN]).median()
                records.append(record)
    return pd.DataFrame(records)


def transformer_passes(sources: Sources, effort: Effort) -> pd.DataFrame:
    """Return the passes of NeuSight's transformers with available configurations, on one GPU each.

    They are predicted by the shipped bundle, and by its models fitted without the GPU. The held-out GPU's own operators
    are included. The intervals of a held-out GPU use the shipped factor, whose calibration included the GPU.
    """
    shipped = load(FOLDER / "operators")
    operators = rows_by_family(read_operator_tables([sources.path(name) for name in OPERATORS]))
    tables = {kind.name: rows_of(effort.sampled(rows.frame, kind), kind) for kind, (_, rows) in operators.items()}
    frame, folder = pd.read_parquet(sources.path("transformers")), sources.path("configs")
    configurations = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    one_gpu = frame["variant"].isna() | (frame["variant"] == "fusion")
    frame = frame[frame["model"].isin(list(configurations)) & one_gpu]
    networks = {
        row["config"]: transformer(
            row["config"],
            configurations[row["model"]],
            int(row["sequence"]),
            int(row["batch"]),
            training=row["mode"] == "train",
            fused=row["variant"] == "fusion",
        )
        for row in frame.to_dict("records")
    }
    records, isolated = [], []
    for name, part in frame.groupby("gpu"):
        device = gpu(str(name))
        effort.tick(f"without {device.name}")
        other, errors = without(shipped, tables, device)
        isolated += errors
        for training, bundle in ((SEEN, shipped), (LEFT_OUT, other)):
            predictors = Predictors(device, None, Predictor(bundle, gpu=device.name))
            for row in part.to_dict("records"):
                facts = {"network": row["config"], "phase": row["mode"], "training": training}
                facts |= {column: row[column] for column in ("measured_ms", *PUBLISHED)}
                times = _milliseconds(predictors.time(networks[row["config"]]))
                records.append({"set": "transformers", "gpu": device.name} | facts | times)
    return pd.concat([pd.DataFrame(records), *isolated], ignore_index=True)


def without(bundle: Bundle, tables: Mapping[str, Rows], device: Gpu) -> tuple[Bundle, list[pd.DataFrame]]:
    """Return the bundle fitted without the GPU's rows, and its times of that GPU's operators over `LONG_US`."""
    parts, errors = {}, []
    for name, rows in tables.items():
        part, on_device = bundle.family_models[name], device_names(rows.frame) == device.name
        assert isinstance(part.fitted, StoredModel)
        model = model_class(part.fitted.name)(**part.fitted.params).fit(rows.take(~on_device))
        settings = frozenset(key for key in part.domain.settings if key.gpu != device.name)
        domain = replace(part.domain, settings=settings)
        counts = {key: count for key, count in part.row_counts.items() if key.gpu != device.name}
        min_us = {key: time_us for key, time_us in part.min_us.items() if key.gpu != device.name}
        parts[name] = replace(part, fitted=model, domain=domain, row_counts=counts, min_us=min_us)
        long = rows.take(on_device & rows.ok & (rows.time_us > LONG_US))
        if len(long):
            times = {"measured_ms": long.time_us / 1e3, OWN: model.predict(long) / 1e3}
            facts = {"gpu": device.name, "training": LEFT_OUT, "set": f"{name} over 100 µs"}
            errors.append(pd.DataFrame(times).assign(**facts))
    costs = {key: cost for key, cost in bundle.call_costs.items() if key.gpu != device.name}
    return replace(bundle, family_models=parts, call_costs=costs), errors


def _milliseconds(time: NetworkTime) -> dict[str, float]:
    return {OWN: time.total_us / 1e3, "lower_ms": time.lower_us / 1e3, "upper_ms": time.upper_us / 1e3}


def torch7_passes(sources: Sources, effort: Effort) -> pd.DataFrame:
    """Return the passes of Torch7 with cuDNN 5 or later, forward and backward, by the shipped bundle, fitted on cuDNN
    7."""
    frame = pd.read_csv(sources.path("end_to_end"))
    version = pd.to_numeric(frame["cudnn"], errors="coerce")
    frame = frame[(frame["use_cudnn"] == 1) & frame["model"].isin(list(TORCH7)) & (version >= FIRST_CUDNN)]
    if frame.empty:
        raise InputError("the end-to-end table has no row with cuDNN 5 or later; give a table with such rows")
    predictors = {name: load_predictors(name) for name in sorted(set(frame["gpu"]))}
    records = []
    for (model, batch), part in frame.groupby(["model", "batch"]):
        effort.tick(str(model))
        passes = _passes(read_onnx(NETWORKS[TORCH7[str(model)]], ReadOptions(batch=int(str(batch)))))
        for row in part.to_dict("records"):
            for phase, column in (("forward", "fwd_ms"), ("backward", "bwd_ms")):
                facts = {"network": model, "gpu": gpu(row["gpu"]).name, "phase": phase, "measured_ms": row[column]}
                records.append(facts | _milliseconds(predictors[row["gpu"]].time(passes[phase])))
    return pd.DataFrame(records)


def _passes(forward: Network) -> dict[str, Network]:
    """Return the forward and the backward pass of an iteration, without the optimizer's step."""
    layers = tuple(layer for layer in training_iteration(forward).layers if layer.operator != OPTIMIZER)
    split, whole = len(forward.layers), replace(forward, training=True)
    return {"forward": replace(whole, layers=layers[:split]), "backward": replace(whole, layers=layers[split:])}


EXPERIMENT = program(run, "transformers", "configs", "end_to_end", *OPERATORS, choices=tuple(SETS))
