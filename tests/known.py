"""Tables of known answers next to a test module: `test_conv.toml` belongs to `test_conv.py`."""

import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@cache
def known_answers(module: str) -> dict[str, Any]:
    """Return the tables of the module with this ``__file__``."""
    return _with_none(tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8")))


def _with_none(value: Any) -> Any:
    """Return the value with None for each text "null", because TOML has no null."""
    if isinstance(value, dict):
        return {key: _with_none(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_none(inner) for inner in value]
    return None if value == "null" else value


def cases(module: str) -> Callable[[Any], Any]:
    """Parametrize a test by the module's table with the test's name: ``names``, and ``rows`` in their order."""

    def parametrized(test: Any) -> Any:
        table = known_answers(module)[test.__name__]
        return pytest.mark.parametrize(table["names"], table["rows"])(test)

    return parametrized
