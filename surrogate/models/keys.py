"""Which rows share one fit: texts that name a row's device, candidate, setting and group of kernels."""

from collections.abc import Sequence

import numpy as np

from surrogate.dataset.problems import device_names, kernel_groups
from surrogate.dataset.rows import Rows

SEPARATOR = "|"


def key_columns(rows: Rows) -> dict[str, np.ndarray]:
    """Columns (rows,) of text: ``gpu``, ``version``, ``candidate`` (with its setting), ``grouping``."""
    frame = rows.frame
    columns = {
        "gpu": device_names(frame),
        "version": frame["library_version"],
        "candidate": rows.candidate,
        "grouping": kernel_groups(frame, rows.family),
        **{name: frame[name] for name in rows.family.setting_names},
    }
    texts = {name: np.array([str(v) for v in values], dtype=object) for name, values in columns.items()}
    return {**texts, "candidate": joined(texts, ("candidate", *rows.family.setting_names))}


def joined(columns: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """(rows,) the named columns' texts, one key per row."""
    key = columns[names[0]]
    for name in names[1:]:
        key = key + SEPARATOR + columns[name]
    return key
