"""What a bundle's parts must be, whoever wrote them: a file may carry the right hash and still hold nonsense."""

import io
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models import Support
from surrogate.uncertainty.conformal import ALL, Factors, Widths
from surrogate.uncertainty.domain import SETTINGS, Domain

if TYPE_CHECKING:
    from surrogate.models import Model


MAX_NUMBER = 2.0**53
"""Greater ones stand nowhere in a model's files."""


MAX_IN_ARRAY = 1e12
"""Nor in its arrays; squares still fit single precision."""


class NonsenseError(ValueError):
    """A part that no release writes; the text names it."""


def check_parts(support: Support, widths: Widths, domain: Domain) -> None:
    """Raises `NonsenseError` where a number is not one, or a text cannot be what it stands for."""
    shares = [*support.exact.values(), *support.general.values()]
    _require(all(_number(share) and 0 <= share <= 1 for share in shares), "support.json: a share")
    _check_widths(widths)
    _check_domain(domain)


def check_model(fitted: "Model", files: Mapping[str, bytes]) -> None:
    """Raises `NonsenseError` for hyperparameters of a type that the model's own do not have, or arrays with NaN."""
    for name, default in type(fitted)().params.items():
        value = fitted.params.get(name, default)
        right = _number(value) if _number(default) else isinstance(value, type(default))
        _require(default is None or right, f"the model's setting {name}")
    for name, content in files.items():
        if name.endswith(".npy"):
            array = np.load(io.BytesIO(content), allow_pickle=False)
            _require(bool((np.abs(array) < MAX_IN_ARRAY).all()), f"model/{name}: a number")
        elif name.endswith(".json"):
            values = json.loads(content)
            _require(all(map(_sane, _leaves(values))), f"model/{name}: a number")
            if name.endswith("candidates.json"):
                right = isinstance(values, dict) and all(map(_number, values.values()))
                _require(right, f"model/{name}: a code")


def _check_widths(widths: Widths) -> None:
    _require(ALL in widths.by_key, "widths.json: the width over all rows")
    _require(all(0 < width < inf for width in widths.by_key.values()), "widths.json: a width")
    _require(0 < widths.own_share < inf, "widths.json: own_share")
    for factors in (widths.distance, widths.time_us):
        _require(_steps(factors), "widths.json: a step function")


def _steps(factors: Factors) -> bool:
    edges, values = factors.edges, factors.values
    ascending = all(a <= b for a, b in pairwise(edges))
    return len(values) == len(edges) + 1 and ascending and all(0 < value < inf for value in values)


def _check_domain(domain: Domain) -> None:
    settings = all(isinstance(s, str) and s.count("|") == len(SETTINGS) - 1 for s in domain.settings)
    _require(bool(domain.settings) and settings, "domain.json: a setting")
    _require(all(isinstance(v, str) and "|" in v for v in domain.versions), "domain.json: a version")
    _require(all(isinstance(s, str) for s in domain.shapes), "domain.json: a shape")
    ranges = [domain.ranges.get(name, (1, 0)) for name in SIZE_COLUMNS]
    _require(all(0 <= least <= greatest < 2**63 for least, greatest in ranges), "domain.json: a range")
    _require(all(limit >= 0 for limit in domain.reach.values()), "domain.json: a reach")
    for known in domain.references.values():
        right = len(known.shapes) > 0 and bool((known.shapes >= 0).all())
        _require(right and 1 <= known.batches[0] <= known.batches[1] < 2**31, "domain.json: a reference")


def _leaves(value: Any) -> Iterator[Any]:
    """Everything in nested lists and dictionaries."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


def _sane(leaf: Any) -> bool:
    """A text, true, false, null, or a number that arithmetic can bear."""
    return not isinstance(leaf, int | float) or (isfinite(leaf) and abs(leaf) < MAX_NUMBER)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _require(right: bool, what: str) -> None:
    if not right:
        raise NonsenseError(f"{what} is not what any release writes")
