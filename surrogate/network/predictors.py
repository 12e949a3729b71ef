"""Who predicts: what this room asks of the predictor of convolutions and of that of all other operators."""

from collections.abc import Sequence
from typing import Any, Protocol

from surrogate.features.conv import Conv
from surrogate.features.operators import Operator
from surrogate.prediction.results import Selection


class ConvPredictor(Protocol):
    """Ranks the algorithms of convolutions on one GPU, as `surrogate.prediction.predictor.Predictor` does."""

    def select_many(
        self, problems: Sequence[Conv], *, workspace_limit: int | None = None, deterministic: bool = False
    ) -> Sequence[Selection]:
        """One selection per problem; without estimates where nothing is feasible."""
        ...


class OperatorTimes(Protocol):
    """Predicts operators other than convolutions on one GPU."""

    def predict(self, ops: Sequence[Operator]) -> Sequence[Any]:
        """One prediction per operator, with ``time_us``, ``lower_us``, ``upper_us`` and ``source``."""
        ...
