"""`compare` as people call it: what it returns shows its answer and tables, as text and in a notebook."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import pandas as pd

from surrogate.evaluation import compare as evaluation
from surrogate.evaluation.compare import Compared
from surrogate.report.summary import html_summary, terminal_summary

P = ParamSpec("P")


class Comparison(Compared):
    """What a comparison found, for people to read."""

    def __repr__(self) -> str:
        return terminal_summary(self.results)

    def _repr_html_(self) -> str:
        return html_summary(self.results)

    def to_dict(self) -> dict[str, Any]:
        """The content of results.json."""
        return self.results

    def to_frame(self) -> pd.DataFrame:
        """The choice rows as a table."""
        return pd.DataFrame(self.results["choice_rows"])


def _for_people(compared: Callable[P, Compared]) -> Callable[P, Comparison]:
    @wraps(compared)
    def compare(*args: P.args, **kwargs: P.kwargs) -> Comparison:
        return Comparison(**vars(compared(*args, **kwargs)))

    return compare


compare = _for_people(evaluation.compare)
