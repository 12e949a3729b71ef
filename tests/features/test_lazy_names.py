"""`lazy_names`: a package's public names, imported when they are asked for and no earlier."""

import math

import pytest

from surrogate.features import lazy_names


def test_a_name_is_imported_when_asked_for() -> None:
    get, names = lazy_names("room", {"sqrt": "math", "away": "no_such_module_anywhere"})
    assert get("sqrt") is math.sqrt and names() == ["away", "sqrt"]
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        get("away")
    with pytest.raises(AttributeError, match="module 'room' has no attribute 'cbrt'"):
        get("cbrt")
