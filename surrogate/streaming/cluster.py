"""A boosted model trained over Dask workers: every worker computes and keeps the pages of its own shards."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.models import Model
from surrogate.models.boosted import BoostedTerms
from surrogate.streaming.fit import scratch_folder, with_booster
from surrogate.streaming.pages import Page, paged_class, started, write_page
from surrogate.streaming.shards import deal


def fit_on_cluster(
    client: Any,
    model: type[Model],
    paths: Sequence[str | Path],
    *,
    params: Mapping[str, Any] | None = None,
    candidates: str | None = None,
    candidate: str = "algorithm",
    keep: Mapping[str, Collection[Any]] = MappingProxyType({}),
    seed: int = 0,
    scratch: str | Path | None = None,
) -> BoostedTerms:
    """As `fit_streaming`, trained by the workers of a `dask.distributed.Client`, whose memory together holds the pages.

    ``scratch`` is a folder that all workers reach (by default the system's temporary one: one machine). Raises
    `InputError` where dask is not installed, for other models, and for what the data cannot carry.
    """
    try:
        import dask.array
        from dask.delayed import delayed
        from xgboost import dask as boosting
    except ImportError:
        raise InputError("training on a cluster needs dask; pip install 'dask[array]' distributed") from None
    paged_class(model)
    with scratch_folder(scratch) as folder:
        shards = deal([Path(path) for path in paths], folder, candidates=candidates, keep=keep)
        begun, names = started(model, shards, candidate, dict(params or {}))
        tasks = [
            client.submit(write_page, begun, shards, candidate, folder, place) for place in range(len(shards))
        ]
        pages = [page for page in client.gather(tasks) if page is not None]
        data, label = (_array(dask.array, delayed(_read), pages, part) for part in ("data", "label"))
        matrix = boosting.DaskQuantileDMatrix(
            client,
            data,
            label,
            feature_types=list(pages[0].feature_types),
            max_bin=begun.params["max_bin"],
            enable_categorical=True,
        )
        settings = begun.settings(seed, 0)
        del settings["nthread"]  # each worker's own count
        trained = boosting.train(client, settings, matrix, num_boost_round=begun.params["rounds"])
        return with_booster(begun, names, trained["booster"])


def _array(dask_array: Any, read: Any, pages: Sequence[Page], part: str) -> Any:
    """All pages' ``part`` as one Dask array; a worker reads a page when it needs it."""
    width = (len(pages[0].feature_types),) if part == "data" else ()
    kind = np.float32 if part == "data" else np.float64
    return dask_array.concatenate(
        [dask_array.from_delayed(read(page, part), (page.rows, *width), dtype=kind) for page in pages]
    )


def _read(page: Page, part: str) -> np.ndarray:
    return page.read()[part]
