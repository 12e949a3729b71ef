"""``seer train --stream``: a bundle of a streamed fit, with intervals and card from a sample of held-out shapes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from surrogate.bundle.bundle import Bundle
from surrogate.bundle.training import held_out_choice, held_out_intervals
from surrogate.dataset.problems import judged_rows
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.schema import SIZE_COLUMNS
from surrogate.dataset.store import Dataset
from surrogate.evaluation.comparison import plain
from surrogate.evaluation.judge import time_errors
from surrogate.features.errors import InputError
from surrogate.models import model_class
from surrogate.models.boosted import BoostedTerms
from surrogate.streaming.fit import fit_pages, scratch_folder
from surrogate.streaming.overview import Overview, shapes_in
from surrogate.streaming.pages import Page, paged_class, started, write_pages
from surrogate.streaming.shards import SHARD_ROWS, Shards, deal
from surrogate.uncertainty.conformal import Widths
from surrogate.uncertainty.domain import Domain
from surrogate.uncertainty.width_fit import fit_widths

STREAMED_MODEL = BoostedTerms.name
"""The default: trees are fitted page by page, the default of `train` needs all rows at once."""
SAMPLE_SHARDS = 3
"""Shards at most whose shapes are held out once for intervals and card, and never more than a fifth of all."""


def train_streaming(
    paths: Sequence[str | Path],
    *,
    model: str = STREAMED_MODEL,
    params: Mapping[str, Any] | None = None,
    candidates: str | None = None,
    candidate: str = "algorithm",
    keep: Mapping[str, Collection[Any]] = MappingProxyType({}),
    where: Sequence[str] = (),
    seed: int = 0,
    scratch: str | Path | None = None,
    shard_rows: int = SHARD_ROWS,
    progress: Callable[[int, int, str], None] | None = None,
) -> Bundle:
    """`train` for tables beyond memory: parquet files read in parts, boosters from external memory.

    Two fits: one without a sample of shapes, whose errors give the interval widths and the card, and one on all rows.
    ``keep``: column → the values whose rows are kept; ``where`` says the same in the card; ``scratch`` and
    ``shard_rows`` as in `fit_streaming`. Raises `InputError` for a model that cannot be streamed, and for what the data
    cannot carry.
    """
    step = progress or (lambda done, total, text: None)
    cls = paged_class(model_class(model))
    with scratch_folder(scratch) as folder:
        step(0, 5, "dealing rows to shards")
        shards = deal(
            [Path(path) for path in paths], folder, candidates=candidates, keep=keep, shard_rows=shard_rows
        )
        begun, names = started(cls, shards, candidate, dict(params or {}))
        held = _held_shards(shards, seed)
        step(1, 5, "features")
        pages, overview, sample = _surveyed(begun, shards, candidate, held, folder)
        rest = [page for page in pages if page.shard not in held]
        if not rest or not sample.ok.any():
            raise InputError(
                f"{shards.name}: too few measured shapes to hold some out; train without --stream"
            )
        step(2, 5, "held-out fit")
        predicted = fit_pages(begun, names, rest, folder, seed).predict_us(sample)
        step(3, 5, "all rows")
        fitted = fit_pages(begun, names, pages, folder, seed)
    step(4, 5, "intervals")
    widths, domain, held_out = _calibrated(shards, overview.span(without=held), sample, predicted)
    card = _card(shards, overview, sample, predicted, where, seed)
    card["held_out"] |= held_out
    bundle = Bundle(fitted, overview.support(), widths, domain, candidate, shards.devices, card)
    step(5, 5, "done")
    return bundle


def _surveyed(
    begun: BoostedTerms, shards: Shards, candidate: str, held: frozenset[int], folder: Path
) -> tuple[list[Page], Overview, Rows]:
    """All pages, what they span, and the rows of the shards that are held out."""
    overview, frames = Overview(), []

    def seen(place: int, rows: Rows) -> None:
        overview.add(place, rows)
        if place in held:
            frames.append(rows.frame)

    pages = write_pages(begun, shards, candidate, folder, seen)
    return pages, overview, rows_of(pd.concat(frames, ignore_index=True), shards.devices)


def _calibrated(
    shards: Shards, rest: pd.DataFrame, sample: Rows, predicted: np.ndarray
) -> tuple[Widths, Domain, dict[str, Any]]:
    """Widths, domain and the card's held-out part, from predictions of a sample by a fit on what ``rest`` spans."""
    distance = Domain.of(rest).distances(sample.frame)
    measured = np.where(sample.ok, sample.time_us, np.nan)
    data = Dataset(sample.frame, shards.metadata["candidates"], shards.name)
    judged = judged_rows(sample.frame, data.candidates)
    widths = fit_widths(sample.frame, predicted, measured, distance, judged)
    domain = Domain.of(
        pd.concat([rest, sample.frame[rest.columns]], ignore_index=True),
        np.concatenate([np.full(len(rest), np.nan), distance]),
    )
    return (
        widths,
        domain,
        {
            "choice": held_out_choice(data, sample, predicted),
            **held_out_intervals(data, sample.frame, predicted, measured, distance, widths.own_share),
        },
    )


def _held_shards(shards: Shards, seed: int) -> frozenset[int]:
    count = max(1, min(len(shards) // 5, SAMPLE_SHARDS))
    return frozenset(np.random.default_rng(seed).permutation(len(shards))[:count].tolist())


def _card(
    shards: Shards, overview: Overview, sample: Rows, predicted: np.ndarray, where: Sequence[str], seed: int
) -> dict[str, Any]:
    span = overview.span()
    frame = sample.frame
    libraries = span[["library", "library_version"]].drop_duplicates().itertuples(index=False, name=None)
    distinct = {
        f"{column}s": sorted(span[column].unique())
        for column in ("gpu", "direction", "dtype", "math", "layout", "algorithm")
    }
    notices = [notice for part in shards.metadata["parts"] for notice in part.get("licence_notices", [])]
    errors = time_errors(predicted[sample.ok], sample.time_us[sample.ok])
    return {
        "data": {
            "name": shards.name,
            "rows": overview.rows,
            "ok_rows": overview.ok_rows,
            "shapes": shapes_in(span),
            "libraries": sorted(f"{library} {version}" for library, version in libraries),
            **distinct,
            "ranges": {c: [int(span[c].min()), int(span[c].max())] for c in SIZE_COLUMNS},
            "origins": sorted(set(span["origin"].dropna())) if "origin" in span else [],
            "where": list(where),
        },
        "licence_notices": notices,
        "training": {"trials": 0, "seed": seed, "streamed": True},
        "held_out": {
            "split": (
                f"a sample by shape, batch left out: {len(frame)} rows of {len(np.unique(sample.shape))} shapes,"
                f" predicted by a fit on the other {overview.rows - len(frame)} rows"
            ),
            "time": plain(asdict(errors)),
        },
    }
