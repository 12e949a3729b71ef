"""How well are pooling, norms, softmax, pointwise operators and matrix products foretold on shapes never seen?

Predictions of operators other than convolutions are compared with published baselines on held-out shapes. The paper's
own workbooks can be added: ``seer import seer-xls Other-ops-*.xls --gpu titan-xp -o ops.parquet``, then ``python -m
experiments.operators --use other_ops=ops.parquet``. They include convolutions and their gradients.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, program
from experiments.held_out import Predictions, predict_rounds, rounds_by
from experiments.operator_tables import read_operator_tables
from experiments.other_operators import GradientRatio, SeerPolynomials
from experiments.sources import Sources
from experiments.verdicts import error_record
from surrogate.dataset.problems import newest_version
from surrogate.dataset.rows import rows_by_family, rows_of
from surrogate.models import DEFAULT_MODEL, TimeModel
from surrogate.models.baselines import GemmInterpolation
from surrogate.report.charts import dots

NEEDS = ("other_ops", "scope_ops", "dense")
FOLDS = 5
GROUPS = ("library", "operator")


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Predict each family of operators in folds by shape. Judge all models on the same rows, per library and
    operator."""
    models = effort.by_name("roofline", "mlp", DEFAULT_MODEL)
    baselines = (GemmInterpolation(), SeerPolynomials(), GradientRatio(effort.seed))
    models = {**{model.name: model for model in baselines}, **models}
    parts = list(held_out(sources, NEEDS, "shape", models, effort))
    overall = errors(parts, GROUPS).assign(gpu="all")
    table = pd.concat([overall, errors(parts, (*GROUPS, "gpu"))], ignore_index=True)
    labels = overall.assign(name=overall["library"] + " " + overall["operator"])
    xlabel = "median error of times on unseen shapes, %"
    figure = dots(labels, "name", "model", "median_error_pct", xlabel, log=True)
    return ExperimentResult(table, figure)


def held_out(
    sources: Sources, needs: Sequence[str], by: str, models: dict[str, TimeModel], effort: Effort
) -> Iterator[Predictions]:
    """Yield held-out predictions of every family of operators in the tables. A quick run uses a sample of the
    shapes."""
    frame = read_operator_tables([sources.path(name) for name in needs])
    for kind, (_, rows) in rows_by_family(frame).items():
        newest = rows.frame[newest_version(rows.frame, kind)]
        part = rows_of(effort.sampled(newest, kind), kind)
        rounds = rounds_by(by, part, min(FOLDS, effort.folds), effort.seed)
        yield predict_rounds(part, "listed", rounds, models, effort.tick)


def errors(parts: Sequence[Predictions], groups: Sequence[str]) -> pd.DataFrame:
    """Return errors per group (columns of the tables) and model over all families, and the default's on the same rows.

    ``coverage_pct`` is the share of the group's rows that the model predicts.
    """
    rows = pd.concat([_long(part) for part in parts], ignore_index=True)
    models = list(dict.fromkeys(name for part in parts for name in part.time_us))
    records = []
    for key, part in rows.groupby(list(groups) or (lambda _: "all"), sort=True):
        labels = dict(zip(groups, key if isinstance(key, tuple) else (key,), strict=bool(groups)))
        measured, shape = part["time_us"].to_numpy(), part["shape"].to_numpy()
        for model in models:
            has_time = np.isfinite(part[model].to_numpy())
            record = {"model": model, "n": 0, "shapes": 0, "coverage_pct": 100 * has_time.mean()}
            if has_time.any():
                each = (part[model].to_numpy()[has_time], measured[has_time], shape[has_time])
                record |= error_record(*each)
                same = error_record(part[DEFAULT_MODEL].to_numpy()[has_time], *each[1:])
                record["default_same_rows_pct"] = same["median_error_pct"]
            records.append({**labels, **record})
    return pd.DataFrame(records)


def _long(part: Predictions) -> pd.DataFrame:
    """Return the tested ok rows with a column of predictions per model. A shape's name contains its family."""
    counted = np.flatnonzero(part.tested & part.rows.ok)
    rows = part.rows.take(counted)
    shape = np.char.add(f"{rows.family.name} ", rows.shape.astype(str))
    times = {name: values[counted] for name, values in part.time_us.items()}
    labels = rows.frame[[*GROUPS, "gpu"]].reset_index(drop=True)
    if "direction" in rows.family.settings:
        labels["operator"] += " " + rows.frame["direction"].reset_index(drop=True)
    return labels.assign(time_us=rows.time_us, shape=shape, **times)


EXPERIMENT = program(run, *NEEDS)
