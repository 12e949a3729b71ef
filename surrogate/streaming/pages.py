"""Design and label of every shard as arrays on disk: features are computed once, however often XGBoost reads them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from surrogate.dataset.candidates import candidate_frame
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError
from surrogate.models import Model, model_class
from surrogate.models.boosted import BoostedDims, BoostedTerms
from surrogate.models.columns import candidate_names
from surrogate.streaming.shards import Shards

PAGED = (BoostedDims.name, BoostedTerms.name)
"""Models that can be fitted page by page."""


@dataclass(frozen=True)
class Page:
    """One shard's ok rows as XGBoost takes them, on disk; ``shard`` its place among the shards."""

    shard: int
    rows: int
    path: Path
    feature_types: Sequence[str]

    def read(self) -> dict[str, Any]:
        """The arrays: ``data`` (rows, columns) float32, ``label`` (rows,), and the columns' types."""
        with np.load(self.path, allow_pickle=False) as stored:
            return {
                "data": stored["data"],
                "label": stored["label"],
                "feature_types": list(self.feature_types),
            }


def paged_class(cls: type[Model]) -> type[BoostedTerms]:
    """``cls``, if it can be fitted page by page. Raises `InputError` where it cannot."""
    if cls.name not in PAGED:
        raise InputError(f"{cls.name} needs all rows at once; stream {' or '.join(PAGED)}")
    return model_class(cls.name)  # type: ignore[return-value]


def started(
    cls: type[Model], shards: Shards, candidate: str, params: dict[str, Any]
) -> tuple[BoostedTerms, np.ndarray]:
    """An unfitted model that codes the candidates of all ok rows, and their names."""
    if shards.measured.empty:
        raise InputError(f"{shards.name}: no row has status ok; there is nothing to learn from")
    kinds = candidate_frame(Dataset(shards.measured.reset_index(drop=True)), candidate)
    names = np.unique(candidate_names(rows_of(kinds, shards.devices)).astype(str))
    return paged_class(cls)(**params).paged(names), names


def write_page(
    model: BoostedTerms,
    shards: Shards,
    candidate: str,
    folder: Path,
    place: int,
    each: Callable[[int, Rows], None] = lambda place, rows: None,
) -> Page | None:
    """Compute one shard's features and write its page; None where no row is ok.

    ``each`` is shown the shard's place and rows on the way.
    """
    data = shards.read(place)
    rows = rows_of(candidate_frame(data, candidate), data.devices)
    each(place, rows)
    if not rows.ok.any():
        return None
    content = model.page(rows.take(rows.ok))
    path = folder / f"page-{place}.npz"
    np.savez(path, data=content["data"], label=content["label"])
    return Page(place, int(rows.ok.sum()), path, tuple(content["feature_types"]))


def write_pages(
    model: BoostedTerms,
    shards: Shards,
    candidate: str,
    folder: Path,
    each: Callable[[int, Rows], None] = lambda place, rows: None,
) -> list[Page]:
    """`write_page` of every shard that has an ok row."""
    written = (write_page(model, shards, candidate, folder, place, each) for place in range(len(shards)))
    return [page for page in written if page is not None]


def iterator(pages: Iterable[Page], cache: Path) -> Any:
    """An `xgboost.DataIter` over pages, which XGBoost caches, quantised, under the name ``cache``."""
    import xgboost

    class Pages(xgboost.DataIter):
        """One page at a time."""

        def __init__(self) -> None:
            self.left = list(pages)
            self.place = 0
            super().__init__(cache_prefix=str(cache))

        def next(self, input_data: Callable[..., Any]) -> bool:
            if self.place == len(self.left):
                return False
            input_data(**self.left[self.place].read())
            self.place += 1
            return True

        def reset(self) -> None:
            self.place = 0

    return Pages()
