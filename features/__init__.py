"""The physics: problems, algorithms, devices, and the analytical terms of a kernel's time. Pure functions."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The package's ``__getattr__`` and ``__dir__`` (PEP 562); ``homes``: public name → the module that defines it."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    def names() -> list[str]:
        return sorted(homes)

    return get, names


def homes_in(package: str, modules: Mapping[str, str]) -> dict[str, str]:
    """Public name → the module that defines it; ``modules``: a module of the package → its public names in one text."""
    return {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}
