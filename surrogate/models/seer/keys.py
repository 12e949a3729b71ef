"""Which rows share one fit: texts that name a row's device, candidate, type and kind of grouping."""

from collections.abc import Sequence

import numpy as np

from surrogate.dataset.problems import device_names
from surrogate.dataset.rows import Rows
from surrogate.models.columns import candidate_names

SEPARATOR = "|"


def key_columns(rows: Rows) -> dict[str, np.ndarray]:
    """Columns (rows,) of text: ``gpu``, ``version``, ``candidate`` (with dtype, math and layout), ``grouping``.

    Depthwise and grouped problems run kernels of their own, hence ``ungrouped``, ``depthwise`` or ``grouped``.
    """
    frame = rows.frame
    depthwise = (frame["groups"] == frame["c"]).to_numpy()
    kinds = [(frame["groups"] == 1).to_numpy(), depthwise]
    columns = {
        "gpu": device_names(frame),
        "version": frame["library_version"],
        "candidate": candidate_names(rows),
        "grouping": np.select(kinds, ["ungrouped", "depthwise"], "grouped"),
        **{name: frame[name] for name in ("dtype", "math", "layout")},
    }
    texts = {name: np.array([str(v) for v in values], dtype=object) for name, values in columns.items()}
    return {**texts, "candidate": joined(texts, ("candidate", "dtype", "math", "layout"))}


def joined(columns: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """(rows,) the named columns' texts, one key per row."""
    key = columns[names[0]]
    for name in names[1:]:
        key = key + SEPARATOR + columns[name]
    return key
