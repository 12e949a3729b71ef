"""The parquet files beside the results, only the columns and rows a figure needs."""

from pathlib import Path

import numpy as np
import pandas as pd

from surrogate.features.errors import InputError

_PREDICTED = ("model", "seed", "algorithm", "family", "status", "time_us", "predicted_us", "supported")
_CHOSEN = ("model", "slowdown", "infeasible", "stratum")


def read_predictions(directory: Path, models: list[str]) -> pd.DataFrame | None:
    """Positive measured and predicted times of ``models``: columns model, family, time_us, predicted_us.

    One seed (the smallest), so that a row counts once per model. None without ``predictions.parquet``.
    """
    frame = _read(directory / "predictions.parquet", _PREDICTED, models)
    if frame is None or frame.empty:
        return frame
    seed = frame["seed"]
    family = frame["family"].fillna(frame["algorithm"]).fillna("unnamed").astype(str)
    frame = frame.assign(family=family)
    measured, predicted = (
        frame[name].to_numpy(dtype=float, na_value=np.nan) for name in ("time_us", "predicted_us")
    )
    # A row of the reader's own may lack the flag; only a plain "no" takes a row out.
    usable = (frame["status"] == "ok") & frame["supported"].ne(False) & (seed.isna() | (seed == seed.min()))
    with np.errstate(invalid="ignore"):
        usable &= np.isfinite(measured) & (measured > 0) & np.isfinite(predicted) & (predicted > 0)
    kept = frame.loc[usable, ["model", "family", "time_us", "predicted_us"]]
    return kept.astype({"time_us": float, "predicted_us": float})


def read_choices(directory: Path, models: list[str], stratum: str) -> pd.DataFrame | None:
    """Slowdowns of ``models`` on the problems of ``stratum``: columns model, slowdown (≥ 1, or inf).

    None where there is no ``choices.parquet``.
    """
    frame = _read(directory / "choices.parquet", _CHOSEN, models)
    if frame is None:
        return None
    if stratum == "ungrouped":
        frame = frame[frame["stratum"] != "grouped"]
    elif stratum != "all":
        frame = frame[frame["stratum"] == stratum]
    slowdown = frame["slowdown"].to_numpy(dtype=float, na_value=np.nan)
    # An infeasible pick without a time of its own is no faster than anything.
    slowdown = np.where(np.isnan(slowdown) & (frame["infeasible"] == True).to_numpy(), np.inf, slowdown)  # noqa: E712
    return frame.assign(slowdown=slowdown).loc[~np.isnan(slowdown), ["model", "slowdown"]]


def _read(path: Path, columns: tuple[str, ...], models: list[str]) -> pd.DataFrame | None:
    """The named columns of the rows of ``models``; `InputError` for a damaged file or a missing column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        return None
    try:
        missing = [name for name in columns if name not in pq.read_schema(path).names]
        if missing:
            raise InputError(f"{path} lacks {', '.join(missing)}; write it again with seer compare")
        return pd.read_parquet(
            path, columns=list(columns), filters=[("model", "in", models)] if models else None
        )
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{path} is not readable as parquet ({reason:.80}); write it again with seer compare"
        ) from None
