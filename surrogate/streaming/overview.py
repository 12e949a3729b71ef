"""What a bundle must know of all rows (their span, their counts, which algorithms ran), gathered shard by shard."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from surrogate.dataset.problems import codes
from surrogate.dataset.rows import Rows
from surrogate.dataset.schema import SETTING_COLUMNS, SHAPE_COLUMNS, SIZE_COLUMNS
from surrogate.models import Support
from surrogate.models.support import signatures

_MEASURED_WITH = (*SETTING_COLUMNS, "algorithm")


@dataclass
class Overview:
    """Grows by `add`; it holds some 200 bytes per distinct problem, and nothing per row.

    ``rows`` and ``ok_rows`` count; ``_spans`` shard → one row per distinct size of a library's direction and per
    distinct setting; ``_exact`` and ``_general`` count runs per signature of `Support`.
    """

    rows: int = 0
    ok_rows: int = 0
    _spans: dict[int, pd.DataFrame] = field(default_factory=dict)
    _exact: pd.DataFrame | None = None
    _general: pd.DataFrame | None = None

    def add(self, place: int, rows: Rows) -> None:
        """Take in the rows of one shard."""
        frame = rows.frame
        self.rows += len(frame)
        self.ok_rows += int(rows.ok.sum())
        self._spans[place] = _span(frame)
        known = frame["status"].isin(("ok", "not_supported")).to_numpy()
        exact, general = signatures(frame[known])
        ok = (frame["status"][known] == "ok").astype(float)
        self._exact, self._general = _counted(self._exact, ok, exact), _counted(self._general, ok, general)

    def span(self, without: frozenset[int] = frozenset()) -> pd.DataFrame:
        """Rows that span all that was added: every size, shape and setting stands in one; shards may be left out."""
        parts = [span for place, span in self._spans.items() if place not in without]
        return pd.concat(parts, ignore_index=True)

    def support(self) -> Support:
        """As `Support.fit` finds it on all rows at once."""
        return Support(_shares(self._exact), _shares(self._general))


def _span(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per distinct (library, direction, sizes) and per distinct setting; equal texts are one object."""
    columns = [*SIZE_COLUMNS, *_MEASURED_WITH, *(["origin"] if "origin" in frame else [])]
    keys = (["library", "direction", *SIZE_COLUMNS], [c for c in columns if c not in SIZE_COLUMNS])
    first = [np.unique(codes(frame, key), return_index=True)[1] for key in keys]
    kept = frame.iloc[np.unique(np.concatenate(first))][columns]
    texts = [column for column in columns if column not in SIZE_COLUMNS]
    return kept.astype(dict.fromkeys(texts, "category")).astype(dict.fromkeys(texts, object))


def _counted(known: pd.DataFrame | None, ok: pd.Series, signature: pd.Series) -> pd.DataFrame:
    new = ok.groupby(signature).agg(["sum", "count"])
    return new if known is None else known.add(new, fill_value=0.0)


def _shares(counts: pd.DataFrame | None) -> dict[str, float]:
    if counts is None:
        return {}
    share = counts["sum"] / counts["count"]
    return {str(key): float(value) for key, value in share.items()}


def shapes_in(span: pd.DataFrame) -> int:
    """Distinct shapes."""
    return len(span.drop_duplicates(list(SHAPE_COLUMNS)))
