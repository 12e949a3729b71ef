"""``seer predict --data``: every row of a table, what it does not say filled in by the options."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from surrogate.cli.problem import open_predictor
from surrogate.dataset.check import check
from surrogate.dataset.normalise import normalise
from surrogate.dataset.store import devices_in, read_table, write_parquet
from surrogate.features.errors import InputError
from surrogate.prediction.table import CHOICES, DEFAULTS, FOLLOWS

if TYPE_CHECKING:
    from surrogate.prediction.predictor import Predictor

NEEDED = ("n", "c", "h", "k", "r")
"""Columns that nothing stands in for."""


def predict_file(data: Path, output: Path, algorithm: str | None, options: dict[str, Any]) -> str:
    """Write the table with five columns more, and ``algorithm`` where the fastest had to be found; a line about it.

    Raises `InputError` where the table lacks sizes or holds a violation, or the options contradict it.
    """
    predictor = open_predictor(options)
    original, metadata = read_table(data)
    frame = _completed(original, predictor, options, data)
    if algorithm is not None:
        if "algorithm" in original:
            raise InputError(f"{data}: the table names its algorithms itself; leave --algorithm out")
        frame["algorithm"] = algorithm
    chosen = "algorithm" not in frame
    if chosen:
        frame["algorithm"] = predictor.predict(frame).algorithm
    frame = normalise(frame, str(data)).drop(columns=["status", "time_us"], errors="ignore")
    violations = [one for one in check(frame, unique=False) if not (chosen and one.column == "algorithm")]
    if violations:
        raise InputError(f"{data}: {violations[0]}")
    predicted = predictor.bundle.predict(frame, devices_in(metadata))
    if chosen:
        predicted.insert(0, "algorithm", frame["algorithm"])
        predicted.loc[frame["algorithm"] == "", ["predicted_us", "lower_us", "upper_us"]] = float("nan")
    predicted.index = original.index
    out = original.drop(columns=predicted.columns, errors="ignore").join(predicted)
    write_parquet(out, output, {"schema": 1, **metadata})
    return f"{output}: {len(out)} rows, {int(predicted['in_domain'].sum())} in domain"


def _completed(
    original: pd.DataFrame, predictor: "Predictor", options: dict[str, Any], data: Path
) -> pd.DataFrame:
    """The table with what `Conv` and the options say in the place of missing columns."""
    missing = [name for name in NEEDED if name not in original]
    if missing:
        raise InputError(f"{data}: column {', '.join(missing)} missing; n, c, h, k and r must be there")
    frame = original.copy()
    for name, value in DEFAULTS.items():
        if name not in frame:
            frame[name] = value
    for name, source in FOLLOWS.items():
        if name not in frame:
            frame[name] = frame[source]
    for name in CHOICES:
        if name not in frame:
            frame[name] = options[name]
    if "gpu" not in frame:
        if predictor.gpu is None:
            raise InputError(f"{data}: column gpu missing; add it, or name the GPU by --gpu G")
        frame["gpu"] = predictor.gpu
    for name, find in (("library", predictor.library), ("library_version", predictor.newest_version)):
        if name not in frame:
            known = {gpu: options[name] or find(gpu) for gpu in frame["gpu"].unique()}
            frame[name] = frame["gpu"].map(known)
    return frame
