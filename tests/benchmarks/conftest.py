"""Benchmarks run where their folder is named, ``python -m pytest tests/benchmarks``, one after another."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folder out of the default suite."""
    named = (Path(arg.partition("::")[0]).resolve() for arg in config.args)
    return None if any(path.is_relative_to(HERE) for path in named) else True


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Reached only where the folder is named: clocks are read in this process, with nothing beside it."""
    config.option.numprocesses = 0
    config.option.dist = "no"
