"""A table of problems as a network: parquet or CSV with a row per layer, or a text file with a problem per line."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, nearest
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.network.network import INPUT, WEIGHT, Layer, Network, Tally
from surrogate.network.work import default_math

NEEDED = ("n", "c", "h", "k", "r")
SETTINGS = ("dtype", "math", "layout", "direction")
MAX_ROWS = 100_000
MAX_HEADER = 100_000
OPERATOR = "conv"


def read_table_of_problems(
    path: str | Path, *, batch: int | None = None, dtype: str | None = None, training: bool = False
) -> Network:
    """Every row or line a convolution, in order; equal rows are equal layers.

    Columns: those of a dataset's problem (w, s and what follows may be left out), optionally ``dtype math layout
    direction name heuristic_algorithm``; a CSV may part them by commas, semicolons or tabs, in capitals, too. A row
    without filter sizes is another operator: its ``op`` (or ``operator``) is counted as unsupported. Under
    ``training`` every layer but the first has both gradients.
    """
    path = Path(path)
    tally = Tally()
    if path.suffix.lower() in (".parquet", ".csv"):
        _from_frame(path, tally)
    else:
        from surrogate.collect.plan_file import file_problems

        tally.add(Layer(f"line {i}", OPERATOR, one.conv) for i, one in enumerate(file_problems(path), 1))
    if len(tally.layers) > MAX_ROWS:
        raise InputError(
            f"{path}: {len(tally.layers)} problems; tables up to {MAX_ROWS} are read as a network"
        )
    if not tally.layers:
        raise InputError(f"{path}: no row holds a convolution; give n, c, h, k and r")
    tally.layers = [_finished(layer, i, batch, dtype, training) for i, layer in enumerate(tally.layers)]
    batches = {layer.work.n for layer in tally.layers if isinstance(layer.work, Conv)}
    return tally.network(path.stem, batches.pop() if len(batches) == 1 else None)


def _finished(layer: Layer, place: int, batch: int | None, dtype: str | None, training: bool) -> Layer:
    """The layer at the wanted batch and element type, with its gradients."""
    work = layer.work
    assert isinstance(work, Conv)
    if batch is not None:
        work = work.with_batch(batch)
    if dtype is not None and dtype != work.dtype:
        work = replace(work, dtype=dtype, math=default_math(dtype))
    found = ((WEIGHT,) if place == 0 else (INPUT, WEIGHT)) if training and work.direction == "fwd" else ()
    weights = work.k * (work.c // work.groups) * work.r * work.s
    return replace(layer, work=work, gradients=found, parameters=weights if found else 0)


def _from_frame(path: Path, tally: Tally) -> None:
    frame = _frame(path)
    missing = [name for name in NEEDED if name not in frame]
    if missing:
        near = nearest(missing[0], map(str, frame.columns))
        raise InputError(
            f"{path}: no column {', '.join(missing)}; a problem has {', '.join(SIZE_COLUMNS)}{near}"
        )
    if "algorithm" in frame and frame.duplicated([c for c in (*SIZE_COLUMNS, "gpu") if c in frame]).any():
        raise InputError(
            f"{path}: a row per algorithm is no list of layers; keep one row per layer and drop the column algorithm"
        )
    if len(frame) > MAX_ROWS:
        raise InputError(f"{path}: {len(frame)} rows; tables up to {MAX_ROWS} are read as a network")
    for number, row in enumerate(frame.to_dict("records"), 1):
        known = {str(name): value for name, value in row.items() if value is not None and value == value}
        if any(name not in known for name in ("k", "r")):
            tally.unsupported[
                str(known.get("op") or known.get("operator") or "row without filter sizes")
            ] += 1
        else:
            tally.add([_layer(known, number, path)])


def _frame(path: Path) -> Any:
    import pandas as pd

    if path.suffix.lower() == ".parquet":
        from surrogate.dataset.store import read_table

        return read_table(path)[0].astype(object)
    try:
        with path.open(encoding="utf-8-sig") as file:
            header = file.readline(MAX_HEADER)
            if len(header) == MAX_HEADER:
                raise InputError(
                    f"{path}: its first line is longer than {MAX_HEADER:,} characters; give a CSV table"
                )
            file.seek(0)
            frame = pd.read_csv(
                file, sep=max(",;\t", key=header.count), skipinitialspace=True, low_memory=False
            )
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a readable CSV file; it must be UTF-8 text") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a CSV file") from None
    except ValueError as error:
        raise InputError(f"{path}: not a readable CSV file ({str(error).splitlines()[0]})") from None
    frame = frame.rename(columns=lambda name: str(name).strip().lower())
    doubled = frame.columns[frame.columns.duplicated()]
    if len(doubled):
        raise InputError(f"{path}: column {doubled[0]!r} stands there twice; keep one")
    return frame.astype(object)


def _layer(row: Mapping[str, Any], number: int, path: Path) -> Layer:
    settings = {name: str(row[name]) for name in SETTINGS if name in row}
    try:
        values: dict[str, Any] = {name: row[name] for name in SIZE_COLUMNS if name in row} | settings
        conv = Conv(**values)
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: row {number}: {error}") from None
    pick = row.get("heuristic_algorithm")
    name = str(row.get("name") or f"row {number}")
    return Layer(name, OPERATOR, conv, heuristic=None if pick is None else str(pick))
