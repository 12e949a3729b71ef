"""Tables of known answers that lie beside a test module, as `test_conv.toml` beside `test_conv.py`."""

import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@cache
def known(module: str) -> dict[str, Any]:
    """The tables beside the module whose ``__file__`` this is."""
    return _with_none(tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8")))


def _with_none(value: Any) -> Any:
    """The value with None for each text "null": TOML has no word for it."""
    if isinstance(value, dict):
        return {key: _with_none(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_none(inner) for inner in value]
    return None if value == "null" else value


def cases(module: str) -> Callable[[Any], Any]:
    """Parametrize a test by the table of its own name beside the module: ``names``, and ``rows`` in their order."""

    def parametrized(test: Any) -> Any:
        table = known(module)[test.__name__]
        return pytest.mark.parametrize(table["names"], table["rows"])(test)

    return parametrized
