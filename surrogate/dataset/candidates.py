"""The rows of a dataset that a model chooses among: algorithms, or solvers."""

import pandas as pd

from surrogate.dataset.problems import fastest_solver
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError
from surrogate.models.seer.metrics import with_kernel_metrics


def candidate_frame(data: Dataset, candidate: str) -> pd.DataFrame:
    """The rows to choose among, with kernel metrics if the dataset has any.

    ``candidate``: of each ``algorithm`` its fastest solver, or every ``solver``. Raises `InputError` for another one,
    and for solvers that the table does not name.
    """
    frame = data.frame if data.kernels is None else with_kernel_metrics(data.frame, data.kernels)
    if candidate == "algorithm":
        return fastest_solver(frame).drop(columns="solver", errors="ignore")
    if candidate != "solver":
        raise InputError(f"candidate {candidate!r} is unknown; known: algorithm, solver")
    if "solver" not in frame:
        raise InputError(
            "candidate solver needs a `solver` column, which this table lacks; use --candidate algorithm"
        )
    return frame
