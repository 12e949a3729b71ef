"""`lazy_names`: a package's public names, imported when they are asked for and no earlier."""

import importlib
import math

import pytest

from surrogate.features.lazy_names import lazy_names

PACKAGES = ("surrogate", "surrogate.network", "surrogate.trace")


def test_a_name_is_imported_when_asked_for() -> None:
    get, names = lazy_names("room", {"sqrt": "math", "away": "no_such_module_anywhere"})
    assert get("sqrt") is math.sqrt and names() == ["away", "sqrt"]
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        get("away")
    with pytest.raises(AttributeError, match="module 'room' has no attribute 'cbrt'"):
        get("cbrt")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_listed(package: str) -> None:
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018
