"""Every model by its name, and the rows that models are fitted on."""

import pandas as pd

from surrogate.dataset.problems import candidate_frame
from surrogate.dataset.store import Dataset
from surrogate.features.errors import require_known
from surrogate.models.base import TimeModel
from surrogate.models.baselines import AlwaysBestSingle, GemmInterpolation, LiEtAl, Roofline
from surrogate.models.boosted import BoostedDims, BoostedTerms
from surrogate.models.calibrated import Calibrated
from surrogate.models.forest import Forest
from surrogate.models.interpolated import InterpolatedTerms
from surrogate.models.linear import LinearDims, LinearTerms
from surrogate.models.mlp import Mlp
from surrogate.models.seer import SeerPaper, SeerTimeOnly
from surrogate.models.seer.kernels import with_kernel_metrics

MODELS: dict[str, type[TimeModel]] = {
    cls.name: cls
    for cls in (
        AlwaysBestSingle,
        Roofline,
        LiEtAl,
        SeerPaper,
        SeerTimeOnly,
        Forest,
        Mlp,
        LinearDims,
        LinearTerms,
        BoostedDims,
        BoostedTerms,
        InterpolatedTerms,
    )
}
"""Name → class of every model, in the order that reports list them."""

ON_REQUEST: dict[str, type[TimeModel]] = {cls.name: cls for cls in (Calibrated, GemmInterpolation)}
"""Models that are compared where they are named: one needs its own rows, the other is of matrix products alone."""
DEFAULT_MODEL = BoostedTerms.name


def model_class(name: str) -> type[TimeModel]:
    """The class of that name, those `ON_REQUEST` among them. Raises `InputError` with the nearest names."""
    if name in ON_REQUEST:
        return ON_REQUEST[name]
    require_known("model", name, MODELS)
    return MODELS[name]


def model_frame(data: Dataset, candidate: str = "algorithm") -> pd.DataFrame:
    """The rows to choose among (`candidate_frame`), with kernel metrics where the dataset has kernels."""
    frame = candidate_frame(data, candidate)
    return frame if data.kernels is None else with_kernel_metrics(frame, data.kernels)
