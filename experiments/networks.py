"""Do predicted convolution times of a network never seen add up to the measured ones?

Whole networks held out with all their shapes: predicted sums of their layers' times against measured ones.

Convolutions are summed over the fastest algorithm's prediction, other layers over what they take as operators.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from experiments.drawing import spreads
from experiments.experiment import Effort, Experiment, Outcome, run_script
from experiments.held_out import candidate_rows, fit_predict, least_us
from experiments.operator_tables import KINDS, read_operator_tables
from experiments.sources import FORWARD, Sources
from experiments.verdicts import percent
from surrogate.dataset.checks import normalise
from surrogate.dataset.problems import shape_names
from surrogate.dataset.rows import Rows, rows_by_family, rows_of
from surrogate.dataset.splits import fold_of_names
from surrogate.dataset.store import read_table
from surrogate.features.algorithms import algorithms
from surrogate.features.errors import InputError
from surrogate.features.families import CONV, Family
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models import DEFAULT_MODEL, Support, TimeModel
from surrogate.models.base import duplicate

MODELS_SHOWN = ("roofline", "seer-time-only", "linear-terms", "boosted-terms")
PLAIN = "several plain convolutions"
CONVOLUTION = "CUDNN_CONV_FWD"
KEY = ["gpu", "library_version", *SIZE_COLUMNS]
PLACE = ["network", "gpu", "batch"]
OPERATORS = ("other_ops", "scope_ops")
POOL = {
    "window": "r", "window_w": "s", "pad": "pad_h", "pad_w": "pad_w", "stride": "stride_h", "stride_w": "stride_w",
}  # fmt: skip
"""Size of a pool → its column in the table of sequences."""


def run(sources: Sources, effort: Effort) -> Outcome:
    """Per network, GPU and batch: the sum over measured convolutions of the fastest algorithm's prediction."""
    sequences = read_table(sources.path("sequences"))[0]
    layers, others = convolution_layers(sequences), other_layers(sequences)
    measured = candidate_rows([sources.dataset(name, FORWARD) for name in ("cudnn", "partial")])
    operators = rows_by_family(read_operator_tables([sources.path(name) for name in OPERATORS]))
    names, models = shape_names(measured.frame, CONV), effort.timed(*MODELS_SHOWN)
    networks = sorted(set(layers["network"]))
    if len(networks) < 2:
        raise InputError(f"{sources.path('sequences')}: {len(networks)} network; holding one out needs two")
    fold_of = fold_of_names(networks, min(effort.folds, len(networks)), effort.seed)
    parts = []
    for fold in range(max(fold_of.values()) + 1):
        held = layers[layers["network"].map(fold_of) == fold]
        train = measured.take(~np.isin(names, list(set(shape_names(held, CONV)))))
        if train.ok.any():
            effort.tick("operators")
            model = effort.named(DEFAULT_MODEL)[DEFAULT_MODEL]
            rest = other_sums(others[others["network"].map(fold_of) == fold], operators, model)
            parts.append(sums(held, train, models, effort).merge(rest, on=PLACE, how="left"))
    if not parts:
        raise InputError("every measured shape belongs to every network; nothing is left to train on")
    table = pd.concat(parts, ignore_index=True).sort_values(["model", *PLACE], kind="stable")
    table = table.reset_index(drop=True)
    known = table["measured_us"] + table["other_measured_us"]
    table["all_layers_error_pct"] = 100 * ((table["predicted_us"] + table["other_predicted_us"]) / known - 1)
    depthwise = set(layers.loc[(layers["groups"] == layers["c"]) & (layers["groups"] > 1), "network"])
    single = table["convs"] < 2
    table["kind"] = np.select(
        [table["network"].isin(list(depthwise)), single], ["depthwise", "one convolution"], PLAIN
    )
    return Outcome(table, _figure(table), answer(table))


def convolution_layers(frame: pd.DataFrame) -> pd.DataFrame:
    """The measured convolutions of a table of layer sequences, with whole numbers for sizes."""
    kept = frame[(frame["op"] == CONVOLUTION) & (frame["time_us"] > 0)].copy()
    kept[list(SIZE_COLUMNS)] = kept[list(SIZE_COLUMNS)].astype("int64")
    return kept.reset_index(drop=True)


def candidates(layers: pd.DataFrame) -> Rows:
    """A row for every algorithm of every distinct (GPU, version, problem) among the layers, without times."""
    problems = layers[KEY].drop_duplicates()
    known = [one.name for one in algorithms("cudnn", "fwd") if one.implemented]
    frame = problems.merge(pd.DataFrame({"algorithm": known}), how="cross")
    texts = {"library": "cudnn", "direction": "fwd", "dtype": "fp32", "math": "fma", "layout": "NCHW"}
    return rows_of(frame.assign(**texts), CONV)


def sums(held: pd.DataFrame, train: Rows, models: Mapping[str, TimeModel], effort: Effort) -> pd.DataFrame:
    """One row per network, GPU, batch and model: measured and predicted sums over the held layers."""
    rows = candidates(held)
    allowed = Support.fit(train).supported(rows)
    predicted, _ = fit_predict(train, rows, models, effort.tick)
    problem = rows.frame.groupby(KEY, sort=False).ngroup().to_numpy()
    distinct = rows.frame.drop_duplicates(KEY)[KEY].reset_index(drop=True)
    found = []
    for name, times in predicted.items():
        each = held.merge(distinct.assign(predicted_us=least_us(problem, times, allowed)), on=KEY, how="left")
        each = each[np.isfinite(each["predicted_us"])]
        total = each.groupby(PLACE, as_index=False).agg(
            convs=("time_us", "size"), measured_us=("time_us", "sum"), predicted_us=("predicted_us", "sum")
        )
        found.append(total.assign(model=name))
    table = pd.concat(found, ignore_index=True)
    table["error_pct"] = 100 * (table["predicted_us"] / table["measured_us"] - 1)
    return table


def other_layers(frame: pd.DataFrame) -> pd.DataFrame:
    """The layers that `KINDS` knows as dataset rows of their operators, with ``network`` and ``network_batch``.

    A matrix product's sizes stand as n, c, h = M, N, K (GEMV: M, K); −1 is a size that a tensor does not have.
    """
    pairs = zip(frame["op"], frame["variant"].fillna("").astype(str), strict=True)
    known = pd.Series([KINDS.get(pair) for pair in pairs], index=frame.index)
    kept = known.notna() & (frame["time_us"] > 0)
    rows, known = frame[kept], known[kept]
    layers = rows[["network", "gpu", "library_version", "time_us"]].assign(
        network_batch=rows["batch"],
        operator=known.str[0],
        variant=known.str[1],
        status="ok",
        algorithm="default",
    )
    sizes = rows[[*"nchw", *POOL.values()]].astype("float64").fillna(0).astype("int64")
    product, vector = layers["operator"] == "gemm", layers["variant"] == "GEMV"
    images = sizes[[*"nchw"]].clip(lower=1)
    pool = layers["operator"].str.contains("pool")
    for size, column in POOL.items():
        images[size] = sizes[column].where(pool, 0)
    products = pd.DataFrame(
        {
            "batch": 1,
            "m": sizes["n"],
            "n": sizes["c"].where(~vector, 1),
            "k": sizes["h"].where(~vector, sizes["c"]),
        }
    )
    parts = [
        layers[~product].assign(library="cudnn").join(images[~product]),
        layers[product].assign(library="cublas").join(products[product]),
    ]
    return normalise(
        pd.concat(parts).sort_index().fillna(dict.fromkeys([*images, *products], 0)), "sequences"
    )


def other_sums(
    held: pd.DataFrame, measured: Mapping[Family, tuple[np.ndarray, Rows]], model: TimeModel
) -> pd.DataFrame:
    """Sums over the ``held`` layers of `other_layers`, measured and predicted, per network, GPU and batch.

    Of each family a copy of ``model`` trains on the ``measured`` rows whose shapes no held layer has; layers of a
    family that has no such row are in neither sum.
    """
    predicted = np.full(len(held), np.nan)
    for kind, (positions, rows) in rows_by_family(held).items():
        known = measured[kind][1] if kind in measured else rows
        train = known.take(~np.isin(shape_names(known.frame, kind), list(set(shape_names(rows.frame, kind)))))
        if train.ok.any():
            predicted[positions] = duplicate(model).fit(train).predict(rows)
    each = held.assign(batch=held["network_batch"], predicted_us=predicted)[np.isfinite(predicted)]
    return each.groupby(PLACE, as_index=False).agg(
        other_measured_us=("time_us", "sum"),
        other_predicted_us=("predicted_us", "sum"),
        others=("time_us", "size"),
    )


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Number, median and 90th percentile of the sums' absolute errors, per model; best first."""
    errors = table.assign(absolute=table["error_pct"].abs()).groupby("model")["absolute"]
    found = errors.agg(["size", "median", lambda values: values.quantile(0.9)])
    found.columns = ["sums", "median_pct", "p90_pct"]
    return found.sort_values("median_pct").reset_index()


def answer(table: pd.DataFrame) -> str:
    """Each model's errors, and where the best one's are largest."""
    found = summary(table)
    best = table[table["model"] == found["model"][0]]
    size = best["error_pct"].abs()
    worst, by_gpu = (size.groupby(best[name]).median().sort_values() for name in ("network", "gpu"))
    each = "; ".join(
        f"{row.model} {percent(row.median_pct)} (p90 {percent(row.p90_pct)})" for row in found.itertuples()
    )
    plain = best.loc[best["kind"] == PLAIN, "error_pct"].abs()
    whole = best["all_layers_error_pct"].abs()
    all_layers = ""
    if whole.any():
        all_layers = f" All layers together: {percent(whole.median())} (p90 {percent(whole.quantile(0.9))})."
    return (
        f"Sums of convolution times of networks whose shapes were all held out ({found['sums'][0]} sums: network, GPU,"
        f" batch), median error: {each}. {found['model'][0]} is furthest off on {worst.index[-1]}"
        f" ({percent(worst.iloc[-1])}) and on {by_gpu.index[-1]} ({percent(by_gpu.iloc[-1])}), closest on"
        f" {by_gpu.index[0]} ({percent(by_gpu.iloc[0])}); without depthwise networks and those of one measured"
        f" convolution it is {percent(plain.median())} (p90 {percent(plain.quantile(0.9))}).{all_layers}"
    )


def _figure(table: pd.DataFrame) -> str | None:
    xlabel = "error of the sum of convolution times, % (median, 10–90 % over GPUs and batches)"
    return spreads(table, "network", "model", "error_pct", xlabel)


EXPERIMENT = Experiment.of(run, ("cudnn", "partial", *OPERATORS, "sequences"))

if __name__ == "__main__":
    run_script(EXPERIMENT)
