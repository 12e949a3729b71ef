"""How well are AMD's matrix products foretold on boards never seen?

The analytical model of products is fitted to MI60 and to Navi 21, each alone, and to MI100, MI210, MI300X and MI355X
together. It is used for boards of the same kind: GCN, RDNA, and boards with matrix cores. Each board is judged by the
model of others: MI60 and Navi 21 by one another, MI300X and MI355X by one another, MI100 and MI210 by all other boards
with matrix cores, and two Vega boards of DeepBench by MI60's. `python -m experiments.fit_bundles --only tiled_products`
writes the model. `seer info surrogate/bundled/aiter` has the errors on held-out sizes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import expm1
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from experiments.experiment import Effort, ExperimentResult, program
from experiments.operator_tables import read_operator_tables
from experiments.sources import Sources, own_settings
from surrogate.dataset.files import write_text
from surrogate.dataset.problems import row_groups
from surrogate.features.analytical import MATRIX_CORES, TENSILE_TYPES, TRANSPOSES, TiledProductModel
from surrogate.features.families.gemm import Gemm
from surrogate.features.gpu import gpu
from surrogate.uncertainty.fit import NEW_GPU_MARGIN
from surrogate.uncertainty.intervals import COVERAGE

NEEDS = ("tensile", "deepbench", "aiter", "mi100", "mi210")
MIOPEN = {"solver": "GemmFwd1x1_0_1", "direction": "fwd", "dtype": "fp16", "layout": "NCHW", "stride_h": 1, "groups": 1}
"""Convolutions that MIOpen computes as products of rocBLAS, one for each image. MI300X's are not used: they take three
times the time of its tuned products."""
MIN_FLOPS = 5e9
"""Minimum FLOPs of these convolutions: MIOpen's own time is in the shorter ones."""
FITTED = {"gfx9": ("mi60",), "gfx1": ("rx-6900-xt",), MATRIX_CORES: ("mi100", "mi210", "mi300x", "mi355x")}
"""Model → the boards that it is fitted to."""
LEFT_OUT = {board: tuple(others) for board, others in own_settings(__file__).items()}
"""Board that is judged → the boards that its model is fitted to."""
START = {"latency": 600.0, "bandwidth": 0.8, "split_us": 3.0, "start_us": 4.0}
"""Values that regularise the fit if the rows do not determine a parameter."""
SHARE = 0.6
ROWS, SHAPE_ROWS = 150, 40
"""Rows of each type on each board in a fit, and rows of each (n, k) among them."""
DRAWS = 20_000
VECTOR_BOARDS = ("mi60", "rx-6900-xt")
ORIGIN = "github.com/ROCm: rocBLAS b520bc83f, aiter e4048607a5, MIOpen 2d1fd99; MIT"


def product_rows(sources: Sources) -> pd.DataFrame:
    """Return the products of rocBLAS and aiter with the column ``type``: an element type, or a tensile type."""
    rows = read_operator_tables([sources.path(name) for name in NEEDS[:3]])
    rows = rows[(rows["operator"] == "gemm") & rows["library"].isin(["rocblas", "aiter"])].reset_index(drop=True)
    own = [next((word for word in text.split() if word not in TRANSPOSES), "") for text in rows["variant"]]
    tensile = np.where(np.array(own) == "", rows["dtype"].map(TENSILE_TYPES), own)
    rows = rows.assign(type=np.where(rows["library"] == "aiter", rows["dtype"], tensile))
    return pd.concat([rows, *(images_as_products(sources, name) for name in NEEDS[3:])], ignore_index=True)


def images_as_products(sources: Sources, name: str) -> pd.DataFrame:
    """Return MIOpen's convolutions by rocBLAS with aligned sizes as products: pixels × output channels × channels."""
    frame = sources.dataset(name, MIOPEN).frame.query("r == 1 and s == 1")
    sizes = {"batch": frame["n"], "m": frame["h"] * frame["w"], "n": frame["k"], "k": frame["c"]}
    facts = {"gpu": name, "dtype": "fp16", "type": "fp16", "math": "default", "variant": "", "library": "rocblas"}
    rows = pd.DataFrame({**sizes, "time_us": frame["time_us"]}).assign(**facts)
    aligned = (rows[["m", "n", "k"]] % 8 == 0).all(axis=1)
    return rows[aligned & (2.0 * rows[["batch", "m", "n", "k"]].astype(float).prod(axis=1) >= MIN_FLOPS)]


def thinned(rows: pd.DataFrame, count: int | None = None) -> pd.DataFrame:
    """Return up to ``count`` rows of each type on each board (None: all), and of each shape `SHAPE_ROWS`."""
    mixed = rows.sample(frac=1.0, random_state=0)
    mixed = mixed.groupby(["gpu", "type", "n", "k"]).head(SHAPE_ROWS)
    return mixed if count is None else mixed.groupby(["gpu", "type"]).head(count)


def times_us(model: TiledProductModel, rows: pd.DataFrame) -> np.ndarray:
    """Return the times (rows,) by the analytical model."""
    out = np.empty(len(rows))
    for (device, dtype, math, variant), positions in row_groups(rows, ("gpu", "dtype", "math", "variant")):
        sizes = {name: rows[name].to_numpy()[positions] for name in ("batch", "m", "n", "k")}
        out[positions] = model.product_us(Gemm(**sizes, dtype=dtype, math=math, variant=variant), gpu(device))
    return out


def fitted(rows: pd.DataFrame, boards: Sequence[str]) -> TiledProductModel:
    """Return the model of the boards' rows by robust least squares in log time, weakly regularised towards `START`."""
    rows = thinned(rows[rows["gpu"].isin(boards)], ROWS).reset_index(drop=True)
    types = sorted(rows["type"].unique())
    start = np.log([*START.values(), *(SHARE for _ in types)])
    measured = np.log(rows["time_us"].to_numpy())

    def model(values: np.ndarray) -> TiledProductModel:
        numbers = np.exp(values).tolist()
        shares = dict(zip(types, numbers[len(START) :], strict=True))
        return TiledProductModel(shares, **dict(zip(START, numbers, strict=False)))

    def distance(values: np.ndarray) -> np.ndarray:
        return np.append(np.log(times_us(model(values), rows)) - measured, values - start)

    return model(least_squares(distance, start, loss="soft_l1", f_scale=0.15, diff_step=0.03, max_nfev=25).x)


def boards_left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `LEFT_OUT` with their ``log_error`` by the model of other boards."""
    parts = []
    for others in dict.fromkeys(LEFT_OUT.values()):
        model = fitted(rows, others)
        part = thinned(rows[rows["gpu"].map(LEFT_OUT) == others])
        parts.append(part.assign(log_error=np.log(times_us(model, part) / part["time_us"].to_numpy())))
    return pd.concat(parts)


def summary(log_errors: Sequence[pd.Series], margin: float = NEW_GPU_MARGIN) -> dict[str, float]:
    """Return the errors on boards never measured, from the log errors on each board that was left out."""
    off = np.median([each.map(expm1).abs().median() for each in log_errors])
    width = max(float(each.abs().quantile(COVERAGE)) for each in log_errors) * (1 + margin / len(log_errors))
    return {"gpus": len(log_errors), "median_ape": round(float(off), 3), "half_width": round(width, 2)}


def verdicts(errors: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of each board and type in percent.

    ``held_pct`` is the share of times within the half width from other boards, if another board has the type.
    """
    records = []
    for (device, kind), part in errors.groupby(["gpu", "type"])["log_error"]:
        off = 100 * part.map(expm1).abs()
        others = errors[(errors["type"] == kind) & (errors["gpu"] != device)].groupby("gpu")["log_error"]
        width = summary([each for _, each in others])["half_width"] if len(others) else np.nan
        counted = {"gpu": device, "type": kind, "n": len(part), "median_error_pct": off.median()}
        held = {"held_pct": 100 * (part.abs() <= width).mean() if width > 0 else np.nan}
        records.append({**counted, "p90_error_pct": off.quantile(0.9), "lean": np.exp(part.median()), **held})
    return pd.DataFrame(records)


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Judge the analytical model on boards left out."""
    del effort
    table = verdicts(boards_left_out(product_rows(sources)))
    return ExperimentResult(table)


def write(sources: Sources, path: Path) -> None:
    """Fit the analytical models on all boards, and write them with their errors on boards left out."""
    rows = product_rows(sources)
    own = {name: fitted(rows, boards) for name, boards in FITTED.items()}
    each = pd.DataFrame([model.shares for model in own.values()])
    shares = np.exp(np.log(each).mean()).to_dict()  # of a type that a kind of boards lacks
    laws = {name: {**asdict(model), "shares": {**shares, **model.shares}} for name, model in own.items()}
    errors = boards_left_out(rows)
    on_boards = dict(list(errors.groupby("gpu")))
    vector = [on_boards[board]["log_error"].sample(DRAWS, replace=True, random_state=0) for board in VECTOR_BOARDS]
    # Both vector boards have the same weight, so that the interval also holds for a board of another kind.
    by_kind = {"": {**summary([pd.concat(vector)], margin=0.0), "gpus": len(vector)}}
    for kind, part in errors[errors["gpu"].isin(FITTED[MATRIX_CORES])].groupby("type"):
        by_kind[f"gfx9|{kind}"] = summary([each for _, each in part.groupby("gpu")["log_error"]])
    content = {
        "laws": _rounded(laws),
        "fitted_on": [*VECTOR_BOARDS, "mi300x", "mi355x"],
        "by_kind": by_kind,
        "origin": ORIGIN,
    }
    write_text(path, json.dumps(content, indent=1) + "\n")


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers with three digits."""
    return {k: _rounded(v) if isinstance(v, Mapping) else float(f"{v:.3g}") for k, v in values.items()}


EXPERIMENT = program(run, *NEEDS)
