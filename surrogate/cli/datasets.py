"""Reading datasets from the command line: several files, filters, the kind of candidate list."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import click
import pandas as pd

from surrogate.dataset.checks import unit_warnings
from surrogate.dataset.described import Kernel
from surrogate.dataset.store import Dataset, merge_datasets, read_dataset
from surrogate.features.errors import InputError, nearest
from surrogate.features.gpu import canonical

LINE_SECONDS = 10.0
"""How often the progress is a line, where standard error is no terminal."""
MAX_LISTED = 12
"""Values of a column that a message names."""


def load_dataset(
    path: Path, candidates: str | None = None, where: Sequence[str] = (), kernel: Kernel | None = None
) -> Dataset:
    """A checked dataset with the filters applied; the filters are noted in its metadata."""
    data = read_dataset(path, candidates=candidates, kernel=kernel)
    print_warnings(path, data)
    kept = filter_rows(data.frame, where, str(path))
    return replace(data, frame=kept, metadata={**data.metadata, "where": list(where)})


def print_warnings(path: Path, data: Dataset) -> None:
    """Say on standard error where a dataset's times look like another unit's, were throttled, or stand for repeats."""
    frame = data.frame
    warnings = unit_warnings(frame, data.devices, data.own)
    if repeats := data.metadata.get("repeats"):
        warnings.append(f"{repeats:,} repeats of a configuration on a problem; the median of its times counts")
    ok = frame[frame["status"] == "ok"]
    held_down = int(ok["throttled"].eq(True).sum()) if "throttled" in ok else 0
    if held_down:
        warnings.append(f"{held_down} of {len(ok)} times were taken while the clock was held down (column throttled)")
    for warning in warnings:
        click.echo(f"warning: {path}: {warning}", err=True)


def load_datasets(
    paths: Sequence[Path], candidates: str | None, where: Sequence[str], kernel: Kernel | None = None
) -> Dataset:
    """Several datasets as one; rows of different candidate lists may train together, the first list's kind counts."""
    parts = [load_dataset(path, candidates, where, kernel) for path in paths]
    if not parts:
        raise InputError("no dataset given; name at least one parquet file")
    return merge_datasets([replace(part, candidates=parts[0].candidates) for part in parts])


def filter_rows(frame: pd.DataFrame, where: Sequence[str], name: str) -> pd.DataFrame:
    """Rows where every ``COLUMN=VALUE[,VALUE…]`` holds. Raises `InputError` where nothing is left."""
    for condition in where:
        column, equals, wanted = condition.partition("=")
        if not equals:
            raise InputError(f"--where {condition!r} is not readable; write COLUMN=VALUE, as dtype=fp32")
        if column not in frame:
            hint = nearest(column, map(str, frame.columns))
            raise InputError(f"{name}: no column {column!r} for --where{hint}")
        values = set(wanted.split(","))
        text = frame[column].map(_as_text)
        held = text.isin(values)
        if column == "gpu":  # by any name that `seer gpus` knows
            held |= text.map(canonical).isin(set(map(canonical, values)))
        if not held.any():
            present = sorted(set(text))
            listed = ", ".join(present[:MAX_LISTED]) + ", …" * (len(present) > MAX_LISTED)
            raise InputError(f"{name}: --where {condition} leaves no rows; {column} holds {listed}")
        frame = frame[held]
    return frame.reset_index(drop=True)


def _as_text(value: object) -> str:
    """A cell as a user would type it: 3.0 in a float column matches 3."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


@contextmanager
def note_on_interrupt(note: str) -> Iterator[None]:
    """Say ``note`` behind what an interrupted command says."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(note)
        raise


@contextmanager
def progress_bar(label: str, unit: str = "step", **settings: Any) -> Iterator[Callable[..., None]]:
    """A callback (done, total, text) that moves a bar on standard error, or prints lines where that is no terminal.

    ``settings`` are `tqdm`'s. An interrupted command says how far it came.
    """
    from tqdm import tqdm

    position = f"before the first {unit}"
    last_s = monotonic()
    lines = not settings.get("disable") and not sys.stderr.isatty()
    settings = {"disable": None, "delay": 0.5, **settings}
    with tqdm(desc=label, unit=unit, leave=False, dynamic_ncols=True, **settings) as bar:

        def step(done: int, total: int, text: str = "") -> None:
            nonlocal position, last_s
            position = f"after {done:,} of {total:,} {unit}s"
            if lines and monotonic() - last_s > LINE_SECONDS:
                last_s = monotonic()
                click.echo(f"{label}: {done:,} of {total:,} {unit}s" + f", {text}" * bool(text), err=True)
            bar.total = total
            bar.set_postfix_str(text, refresh=False)
            bar.update(done - bar.n)

        try:
            yield step
        except KeyboardInterrupt as stop:  # how far it came is known now alone
            stop.add_note(position)
            raise
