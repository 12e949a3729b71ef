"""Tests of the public names and commands. A change here needs an entry in CHANGELOG.md."""

import importlib
import subprocess
import sys

import pytest

import surrogate
from surrogate.cli import COMMANDS
from tests.known import cases

NAMES = {
    *("Bundle", "Comparison", "Conv", "Dataset", "Gpu", "InputError", "Prediction", "Predictions", "Predictor"),
    *("Selection", "autotune", "calibrate", "compare", "evaluate", "gpu", "gpus", "load", "predict", "read_dataset"),
    *("save", "select", "train", "write_dataset"),
}
PACKAGES = ("models", "network", "trace", "tuning")
"""Packages with public names of their own."""
SUBPACKAGES = ("formats", "models", "network", "trace", "tuning")
"""Packages that are attributes of ``surrogate`` after ``import surrogate``."""


def test_the_public_names_are_fixed() -> None:
    assert sorted(surrogate.__all__) == sorted(NAMES | {*SUBPACKAGES})
    assert set(dir(surrogate)) >= NAMES
    assert all(getattr(surrogate, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = surrogate.no_such_name


@pytest.mark.parametrize("package", PACKAGES)
def test_every_listed_name_of_a_package_exists(package: str) -> None:
    module = importlib.import_module(f"surrogate.{package}")
    assert module.__all__
    missing = [name for name in module.__all__ if name != "kernel_tuner" and not hasattr(module, name)]  # an extra
    assert missing == []


def test_the_commands_are_fixed() -> None:
    assert set(COMMANDS) == {
        *("collect", "doctor", "import", "data", "compare", "report", "train", "tune", "evaluate"),
        *("calibrate", "predict", "select", "export", "network", "serving", "info", "trace", "gpus"),
    }


@cases(__file__)
def test_light_code_loads_no_large_package(code, large) -> None:
    """Importing a large package takes a second."""
    script = f"import atexit, sys; atexit.register(lambda: print(*sorted(sys.modules)))\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "surrogate" in loaded and not set(large) & set(loaded)
