"""Fit the analytical model of AMD's matrix products, and print its errors: ``python -m experiments.tiled_products``.

The constants are fitted to MI60 and Navi 21, each alone. They are used for boards of the same kind, GCN and RDNA.
Boards with matrix cores for fp32 have no times here. They use the geometric mean of both shares and bandwidths, and the
latency and start time of Navi 21, whose kernels are as new as theirs. The cost of a split sum is assumed.
Libraries for boards with matrix cores split sums, but libraries for the two boards rarely do. Errors are computed on
the board that was not fitted, and on two Vega boards of DeepBench.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from experiments.experiment import in_one_line
from experiments.fit_bundles import SHIPPED
from experiments.operator_tables import read_operator_tables
from experiments.sources import DEFAULT_FOLDER, FILES
from surrogate.dataset.problems import row_groups
from surrogate.features.analytical import TENSILE_TYPES, TRANSPOSES, TiledProductModel
from surrogate.features.families.gemm import Gemm
from surrogate.features.gpu import gpu
from surrogate.prediction.sources.datasheet import PRODUCTS

FITTED, JUDGED = {"gfx9": "mi60", "gfx1": "rx-6900-xt"}, ("mi25", "vega-fe")
START = {"latency": 800.0, "bandwidth": 0.8, "split_us": 10.0, "start_us": 5.0}
"""Values that regularise the fit if the rows do not determine a parameter."""
SHARE = 0.7
ROWS = 500
"""Rows of each type in a fit."""


def type_of(rows: pd.DataFrame) -> pd.Series:
    """Return the tensile type (rows,) of the variant's name or of the element type."""
    named = [next((w for w in text.split() if w not in TRANSPOSES), "") for text in rows["variant"]]
    own = [name or TENSILE_TYPES[dtype] for name, dtype in zip(named, rows["dtype"], strict=True)]
    return pd.Series(own, index=rows.index)


def times_us(model: TiledProductModel, rows: pd.DataFrame) -> np.ndarray:
    """Return the times (rows,) by the analytical model."""
    out = np.empty(len(rows))
    settings = ["gpu", "dtype", "math", "variant"]
    for (device, *values), positions in row_groups(rows, settings):
        part = rows.iloc[positions]
        sizes = {name: part[name].to_numpy() for name in ("batch", "m", "n", "k")}
        dtype, math, variant = map(str, values)
        out[positions] = model.product_us(Gemm(**sizes, dtype=dtype, math=math, variant=variant), gpu(device))
    return out


def fitted(rows: pd.DataFrame) -> TiledProductModel:
    """Return the model of one board's rows by robust least squares in log time, weakly regularised towards `START`."""
    types = sorted(type_of(rows).unique())
    start = np.log([*START.values(), *(SHARE for _ in types)])
    measured = np.log(rows["time_us"].to_numpy())

    def model(values: np.ndarray) -> TiledProductModel:
        numbers = np.exp(values).tolist()
        shares = dict(zip(types, numbers[len(START) :], strict=True))
        return TiledProductModel({"SB": SHARE, **shares}, **dict(zip(START, numbers, strict=False)))

    def distance(values: np.ndarray) -> np.ndarray:
        return np.append(np.log(times_us(model(values), rows)) - measured, 2.0 * (values - start))

    return model(least_squares(distance, start, loss="soft_l1", f_scale=0.2, diff_step=0.03, max_nfev=25).x)


def mean(models: list[TiledProductModel]) -> TiledProductModel:
    """Return the geometric mean of models. A type that some models lack has the mean of the others."""

    def middle(values: list[float]) -> float:
        return float(np.exp(np.mean(np.log(values))))

    types = sorted({name for model in models for name in model.shares})
    shares = {name: middle([model.shares[name] for model in models if name in model.shares]) for name in types}
    return TiledProductModel(shares, **{name: middle([getattr(model, name) for model in models]) for name in START})


def errors(model: TiledProductModel, rows: pd.DataFrame, title: str) -> np.ndarray:
    """Print the errors by type and return log(predicted / measured), (rows,)."""
    log = np.log(times_us(model, rows) / rows["time_us"].to_numpy())
    for name, part in pd.Series(log).groupby(type_of(rows).to_numpy()):
        ninth = np.exp(part.abs().quantile(0.9))
        off, lean = (np.exp(part) - 1).abs().median(), np.exp(part.median())
        click.echo(f"{title:24} {name:5} {len(part):6,} rows  {off:6.1%}  ×{lean:.2f}  nine in ten within ×{ninth:.2f}")
    return log


def to_json(model: TiledProductModel, shares: Mapping[str, float]) -> dict[str, object]:
    """Return the model as JSON with three digits. ``shares`` are used if the model has none."""
    return {
        "shares": {name: float(f"{value:.3g}") for name, value in ({**shares, **model.shares}).items()},
        **{name: float(f"{getattr(model, name):.3g}") for name in START},
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--out", type=click.Path(path_type=Path), default=SHIPPED / PRODUCTS, show_default="where the package has it"
)
def main(out: Path) -> None:
    """Fit, judge and write the model."""
    with in_one_line("tiled_products"):
        files = [DEFAULT_FOLDER / FILES[name][0] for name in ("tensile", "deepbench")]
        rows = read_operator_tables(files)
        rows = rows[(rows["operator"] == "gemm") & (rows["library"] == "rocblas")]
        kind = type_of(rows)
        sample = pd.concat(
            [part.sample(min(ROWS, len(part)), random_state=0) for _, part in rows.groupby(["gpu", kind])]
        )
        models = {name: fitted(sample[sample["gpu"] == board]) for name, board in FITTED.items()}
        both = mean([*models.values()])
        left_out = []
        for name, board in FITTED.items():
            errors(models[name], rows[rows["gpu"] == board], f"{board}, itself")
            (other,) = (each for each in models if each != name)
            left_out.append(errors(models[other], rows[rows["gpu"] == board], f"{board}, left out"))
        for board in JUDGED:
            errors(models["gfx9"], rows[rows["gpu"] == board], f"{board}, left out")
        # Both held-out boards have the same weight, so that the interval also holds for a board of another kind.
        draws = np.random.default_rng(0)
        log = np.concatenate([draws.choice(each, 20_000) for each in left_out])
        summary = {
            "gpus": len(left_out),
            "median_ape": round(float(np.median(np.abs(np.exp(log) - 1))), 3),
            "half_width": round(float(np.quantile(np.abs(log), 0.9)), 2),
        }
        matrix = {"matrix": both.shares["HB"]}
        newer = {"shares": both.shares, "bandwidth": both.bandwidth, "split_us": START["split_us"]}
        content = {
            "laws": {name: to_json(model, {**both.shares, **matrix}) for name, model in models.items()},
            "matrix_cores": to_json(replace(models["gfx1"], **newer), matrix),
            "origin": "github.com/ROCm/rocBLAS, b520bc83f, MIT",
            "fitted_on": [*FITTED.values()],
            "by_kind": {"": summary},
        }
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        click.echo(f"{out}: {summary['median_ape']:.1%} in the median, half width {summary['half_width']}")


if __name__ == "__main__":
    main(prog_name="python -m experiments.tiled_products")
