"""Read datasets for the command line: several files, filters, and the kind of candidate list."""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pandas as pd

from surrogate.cli.options import echo
from surrogate.dataset.checks import unit_warnings
from surrogate.dataset.described import Kernel
from surrogate.dataset.store import Dataset, merge_datasets, read_dataset
from surrogate.features import InputError, canonical, nearest, printable

LINE_SECONDS = 10.0
"""Seconds between progress lines if standard error is no terminal."""
MAX_LISTED = 12
"""Maximum number of a column's values in a message."""


def load_dataset(
    path: Path, candidates: str | None = None, where: Sequence[str] = (), kernel: Kernel | None = None
) -> Dataset:
    """Return a checked dataset with the filters applied; its metadata records the filters."""
    data = read_dataset(path, candidates=candidates, kernel=kernel)
    print_warnings(path, data)
    kept = filter_rows(data.frame, where, str(path))
    return replace(data, frame=kept, metadata={**data.metadata, "where": list(where)})


def print_warnings(path: Path, data: Dataset) -> None:
    """Print warnings of a dataset on standard error: times in a wrong unit, throttled times, merged repeats."""
    frame = data.frame
    warnings = unit_warnings(frame, data.devices, data.described_family)
    if repeats := data.metadata.get("repeats"):
        warnings.append(f"{repeats:,} repeats of a candidate on a problem; the median of its times counts")
    ok = frame[frame["status"] == "ok"]
    count = int(ok["throttled"].eq(True).sum()) if "throttled" in ok else 0
    if count:
        warnings.append(f"{count} of {len(ok)} times were taken while the clock was throttled (column throttled)")
    for warning in warnings:
        echo(f"warning: {path}: {warning}", err=True)


def load_datasets(
    paths: Sequence[Path], candidates: str | None, where: Sequence[str], kernel: Kernel | None = None
) -> Dataset:
    """Return several datasets as one. The kind of candidate list is the first dataset's."""
    parts = [load_dataset(path, candidates, where, kernel) for path in paths]
    if not parts:
        raise InputError("no dataset is given; give at least one file")
    return merge_datasets([replace(part, candidates=parts[0].candidates) for part in parts])


def filter_rows(frame: pd.DataFrame, where: Sequence[str], name: str) -> pd.DataFrame:
    """Return the rows that satisfy every ``COLUMN=VALUE[,VALUE…]``. Raises `InputError` if no row is left."""
    for condition in where:
        column, equals, listed_values = condition.partition("=")
        if not equals:
            raise InputError(f"--where {condition!r} is not readable; write COLUMN=VALUE, as dtype=fp32")
        if column not in frame:
            raise InputError(f"{name}: no column {column!r} for --where{nearest(column, map(str, frame.columns))}")
        values = set(listed_values.split(","))
        text = frame[column].map(_as_text)
        matches = text.isin(values)
        if column == "gpu":  # a GPU matches by any name that `seer gpus` lists
            matches |= text.map(canonical).isin(set(map(canonical, values)))
        if not matches.any():
            present = sorted(set(text))
            listed = ", ".join(present[:MAX_LISTED]) + ", …" * (len(present) > MAX_LISTED)
            raise InputError(f"{name}: --where {condition} leaves no rows; {column} holds {listed}")
        frame = frame[matches]
    return frame.reset_index(drop=True)


def _as_text(value: object) -> str:
    """Return a cell as a user would type it: 3.0 in a float column matches 3."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _time_left(seconds: float) -> str:
    """Return the time left as text."""
    return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"


@contextmanager
def kept_fits(folder: Path) -> Iterator[Path]:
    """Yield the folder of finished fits. It is removed after success and if it has no fit; an error names it."""
    try:
        yield folder
    except (InputError, OSError) as error:
        if any(path.is_file() for path in folder.rglob("*")):
            raise InputError(f"{error}; finished fits are kept in {folder}, remove it or try again") from None
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def progress_bar(label: str, unit: str = "step", note: str = "", **settings: Any) -> Iterator[Callable[..., None]]:
    """Yield a callback (done, total, text) for a progress bar on standard error, or for lines if it is no terminal.

    A line estimates the time left from the progress since the line before. ``settings`` are options of `tqdm`. The
    message of an interrupted command states the position and the ``note``.
    """
    from tqdm import tqdm

    position = f"before the first {unit}"
    last_s, last_done = monotonic(), 0
    lines = not settings.get("disable") and not sys.stderr.isatty()
    settings = {"disable": None, "delay": 0.5, **settings}
    label = printable(label)
    with tqdm(desc=label, unit=unit, leave=False, dynamic_ncols=True, **settings) as bar:

        def step(done: int, total: int, text: str = "") -> None:
            nonlocal position, last_s, last_done
            position = f"after {done:,} of {total:,} {unit}s"
            passed_s = monotonic() - last_s
            if lines and passed_s > LINE_SECONDS:
                left = _time_left(passed_s * (total - done) / (done - last_done)) if last_done < done < total else ""
                echo(", ".join(filter(None, (f"{label}: {done:,} of {total:,} {unit}s", text, left))), err=True)
                last_s, last_done = monotonic(), done
            bar.total = total
            bar.set_postfix_str(printable(text), refresh=False)
            bar.update(done - bar.n)

        try:
            yield step
        except KeyboardInterrupt as stop:  # only this function knows the position
            stop.add_note(position)
            if note:
                stop.add_note(note)
            raise
