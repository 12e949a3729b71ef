"""Which columns of `Rows.features` a model sees, and the categorical code of its candidates."""

import numpy as np

from surrogate.dataset.problems import joined
from surrogate.dataset.rows import COLUMN_NAMES, CONTEXT_NAMES, Rows
from surrogate.features.table import ALGORITHM_NAMES, DIMENSION_NAMES, MACHINE_NAMES, PROBLEM_NAMES

DIMS = (*DIMENSION_NAMES, *MACHINE_NAMES, *CONTEXT_NAMES)
"""The raw problem and the device: no physics."""
TERMS = (
    *DIMENSION_NAMES,
    *PROBLEM_NAMES,
    *MACHINE_NAMES,
    *(n for n in ALGORITHM_NAMES if n != "family"),
    *CONTEXT_NAMES,
)
"""The raw problem, the device, and the analytical terms."""


def select(rows: Rows, names: tuple[str, ...]) -> np.ndarray:
    """(rows, len(names)) float32."""
    return rows.features[:, [COLUMN_NAMES.index(name) for name in names]]


def candidate_names(rows: Rows) -> np.ndarray:
    """(rows,) text: library, direction and algorithm (and solver, where the table has them) of each row."""
    parts = ("library", "direction", "algorithm", *(("solver",) if "solver" in rows.frame else ()))
    return joined(rows.frame, parts).to_numpy()


def vocabulary(names: np.ndarray) -> dict[str, int]:
    """Distinct names → code, in sorted order."""
    return {name: code for code, name in enumerate(sorted(set(names)))}


def roofline_base_us(rows: Rows) -> np.ndarray:
    """(rows,) the time in µs that a learned correction multiplies: the geometric mean of the problem's and the

    algorithm's roofline, which held-out times and choices preferred to either alone.
    """
    ratio = rows.column("log2_algorithm_roofline_ratio").astype(np.float64)
    return rows.roofline_us * np.exp2(0.5 * ratio)
