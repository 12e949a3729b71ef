"""Which fifty rows are predicted worst, and what have they in common?

The fifty worst errors with their physics, and what they have in common.
"""

import numpy as np
import pandas as pd

from experiments.drawing import shares as dot_shares
from experiments.experiment import Effort, Experiment, Outcome, run_script
from experiments.held_out import cross_validate
from experiments.sources import Sources
from experiments.verdicts import counted_rows, listing, percent
from surrogate.dataset.rows import Rows
from surrogate.features.algorithms import MECHANISMS
from surrogate.models import DEFAULT_MODEL

WORST = 50
LEAST_SHARE = 0.2
"""A trait of fewer of the worst rows than this is not called common."""
MEASURED = (
    "under 50 µs",
    "over 10 ms",
    "over 10× the problem's best",
    "over 100× the roofline",
    "repeats differ by over 10 %",
)
"""Traits that are known only after measuring; the answer names those known before."""
SHOWN = (
    "gpu", "library_version", "n", "c", "h", "w", "k", "r", "s", "stride_h", "pad_h", "dilation_h", "groups",
    "algorithm", "time_us",
)  # fmt: skip


def run(sources: Sources, effort: Effort) -> Outcome:
    """The default model by shape on the cuDNN table; rows ranked by |log(predicted / measured)|."""
    data, also = effort.sample(sources.dataset("cudnn")), sources.dataset("partial")
    models = effort.timed(DEFAULT_MODEL)
    found = cross_validate(data, models, count=effort.folds, seed=effort.seed, also=[also], tick=effort.tick)
    counted = counted_rows(found)
    rows, predicted = found.rows.take(counted), found.time_us[DEFAULT_MODEL][counted]
    log_error = np.log(predicted / rows.time_us)
    worst = np.argsort(-np.abs(log_error), kind="stable")[:WORST]
    has = traits(rows)
    table = physics(rows.take(worst)).assign(
        predicted_us=predicted[worst],
        predicted_over_measured=np.exp(log_error[worst]),
        traits=["; ".join(has.columns[mask]) for mask in has.to_numpy()[worst]],
    )
    common = shares(has, worst, log_error)
    return Outcome(table, _figure(common), answer(common, log_error, worst))


def physics(rows: Rows) -> pd.DataFrame:
    """Sizes, measured time, mechanism, GFLOPs, roofline time, waves of a middle tile, workspace, time over the best."""
    frame = rows.frame[list(SHOWN)].reset_index(drop=True)
    return frame.assign(
        mechanism=np.array(MECHANISMS)[rows.column("mechanism").astype(int)],
        gflops=np.exp2(rows.column("log2_flops").astype(float)) / 1e9,
        roofline_us=rows.roofline_us,
        measured_over_roofline=rows.time_us / rows.roofline_us,
        waves=np.exp2(rows.column("log2_waves_middle").astype(float)),
        term_workspace_mib=(np.exp2(rows.column("log2_workspace_bytes").astype(float)) - 1) / 2**20,
    )


def traits(rows: Rows) -> pd.DataFrame:
    """(rows, traits) bool: what a row may have in common with others."""
    frame = rows.frame
    mechanism = np.array(MECHANISMS)[rows.column("mechanism").astype(int)]
    best = pd.Series(rows.time_us).groupby(rows.problem).transform("min").to_numpy()
    found = {
        "depthwise": rows.column("is_depthwise") > 0,
        "grouped": (frame["groups"] > 1).to_numpy(),
        "FFT": np.isin(mechanism, ["fft", "fft_tiling"]),
        "FFT at a stride": np.isin(mechanism, ["fft", "fft_tiling"]) & (frame["stride_h"] > 1).to_numpy(),
        "Winograd": np.isin(mechanism, ["winograd", "winograd_nonfused"]),
        "GEMM": np.isin(mechanism, ["gemm", "implicit_gemm", "precomp_gemm"]),
        "below one wave": rows.column("log2_waves_middle") < 0,
        "under 50 µs": rows.time_us < 50,
        "over 10 ms": rows.time_us > 10_000,
        "over 10× the problem's best": rows.time_us > 10 * best,
        "over 100× the roofline": rows.time_us > 100 * rows.roofline_us,
        "batch 1": (frame["n"] == 1).to_numpy(),
        "1×1 filter": ((frame["r"] == 1) & (frame["s"] == 1)).to_numpy(),
        "filter over 3": (frame["r"] > 3).to_numpy(),
        "stride over 1": (frame["stride_h"] > 1).to_numpy(),
        "Kepler or Maxwell": rows.column("compute_capability") < 6,
    }
    if {"time_us_min", "time_us_max"} <= set(frame.columns):
        spread = frame["time_us_max"] / frame["time_us_min"]
        found["repeats differ by over 10 %"] = (spread > 1.1).to_numpy()
    return pd.DataFrame(found)


def shares(has: pd.DataFrame, worst: np.ndarray, log_error: np.ndarray) -> pd.DataFrame:
    """Per trait: its share in percent of the worst rows and of all, their quotient, and its rows' median error."""
    error = 100 * np.abs(np.expm1(log_error))
    records = []
    for name in has.columns:
        mine = has[name].to_numpy()
        records.append(
            {
                "trait": name,
                "worst_pct": 100 * mine[worst].mean(),
                "all_pct": 100 * mine.mean(),
                "median_error_pct": np.median(error[mine]) if mine.any() else np.nan,
            }
        )
    table = pd.DataFrame(records)
    lift = table["worst_pct"] / table["all_pct"].where(table["all_pct"] > 0)
    return table.assign(lift=lift).sort_values("lift", ascending=False, kind="stable").reset_index(drop=True)


def answer(common: pd.DataFrame, log_error: np.ndarray, worst: np.ndarray) -> str:
    """The traits most over-represented among the worst rows, and which way the model errs there."""
    known = common[~common["trait"].isin(MEASURED)]
    told = [
        f"{row['trait']} ({percent(row['worst_pct'])} of them against {percent(row['all_pct'])} of all rows)"
        for _, row in known[known["worst_pct"] >= 100 * LEAST_SHARE].head(4).iterrows()
    ]
    low = float(100 * np.mean(log_error[worst] < 0))
    return (
        f"The {len(worst)} worst errors of {DEFAULT_MODEL} (factor {np.exp(np.abs(log_error[worst][-1])):.1f} to"
        f" {np.exp(np.abs(log_error[worst][0])):.1f}) have in common: {listing(told)};"
        f" {percent(low)} of them are predicted too fast."
    )


def _figure(common: pd.DataFrame) -> str | None:
    columns = {f"the {WORST} worst rows": "worst_pct", "all rows": "all_pct"}
    return dot_shares(common, "trait", columns, "share of rows that have the trait, %")


EXPERIMENT = Experiment.of(run, ("cudnn", "partial"))

if __name__ == "__main__":
    run_script(EXPERIMENT)
