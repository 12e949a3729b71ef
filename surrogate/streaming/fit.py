"""A boosted model fitted from pages on disk: XGBoost's external memory, one quantised page at a time."""

import json
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.models import Model
from surrogate.models.boosted import BoostedTerms
from surrogate.models.columns import vocabulary
from surrogate.streaming.pages import Page, iterator, paged_class, started, write_pages
from surrogate.streaming.shards import SHARD_ROWS, deal


def fit_streaming(
    model: type[Model],
    paths: Sequence[str | Path],
    *,
    params: Mapping[str, Any] | None = None,
    candidates: str | None = None,
    candidate: str = "algorithm",
    keep: Mapping[str, Collection[Any]] = MappingProxyType({}),
    seed: int = 0,
    scratch: str | Path | None = None,
    shard_rows: int = SHARD_ROWS,
) -> BoostedTerms:
    """``model`` (boosted-dims or boosted-terms) fitted on all ok rows of parquet datasets, in bounded memory.

    ``keep``: column → the values whose rows are kept; ``scratch`` is a folder with room for about 400 bytes a row, by
    default the system's temporary one; what is written there goes when the fit ends. ``shard_rows`` is how many rows
    have their features computed at once: some 3 kB of memory each. Raises `InputError` for other models and for what
    the data cannot carry.
    """
    paged_class(model)
    with scratch_folder(scratch) as folder:
        shards = deal(
            [Path(path) for path in paths], folder, candidates=candidates, keep=keep, shard_rows=shard_rows
        )
        begun, names = started(model, shards, candidate, dict(params or {}))
        pages = write_pages(begun, shards, candidate, folder)
        return fit_pages(begun, names, pages, folder, seed)


def fit_pages(
    model: BoostedTerms, names: np.ndarray, pages: Sequence[Page], folder: Path, seed: int
) -> BoostedTerms:
    """The fitted model of pages that ``model`` computed; ``names`` are the candidates that it codes."""
    import xgboost

    if not hasattr(xgboost, "ExtMemQuantileDMatrix"):
        raise InputError(
            f"xgboost {xgboost.__version__} has no external-memory matrix; pip install 'xgboost>=3'"
        )
    threads = model.params.get("nthread") or os.cpu_count() or 1
    data = xgboost.ExtMemQuantileDMatrix(
        iterator(pages, folder / f"cache-{pages[0].shard}-{len(pages)}"),
        max_bin=model.params["max_bin"],
        enable_categorical=True,
        nthread=threads,
    )
    booster = xgboost.train(model.settings(seed, threads), data, num_boost_round=model.params["rounds"])
    return with_booster(model, names, booster)


def with_booster(model: BoostedTerms, names: np.ndarray, booster: Any) -> BoostedTerms:
    """The model that a booster trained on its pages makes; saved and loaded, it is as one fitted in memory."""
    codes = json.dumps(vocabulary(names)).encode()
    files = {"booster.ubj": bytes(booster.save_raw("ubj")), "candidates.json": codes}
    return type(model).load(model.params, files)


@contextmanager
def scratch_folder(parent: str | Path | None) -> Iterator[Path]:
    """A new folder under ``parent`` that goes, with all in it, when the block ends."""
    try:
        made = tempfile.TemporaryDirectory(prefix="seer-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise InputError(f"{parent}: no scratch folder there ({error.strerror}); name another") from None
    with made as name:
        yield Path(name)
