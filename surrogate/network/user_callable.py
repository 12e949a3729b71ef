"""``module:callable`` of the user's own: imported on the user's word, as ``python -m`` would, so its code runs."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from surrogate.features.errors import InputError


def imported_callable(source: str, contract: str) -> Callable[..., Any]:
    """The callable that ``source`` names; modules of the current folder count, too.

    Raises `InputError`, with ``contract`` as the remedy, where there is none or importing it fails.
    """
    module, _, name = source.partition(":")
    if not module or not name:
        raise InputError(f"{source!r} names no function; write module:callable; {contract}")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        with in_one_line(source):
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
    if not callable(found):
        raise InputError(f"{source}: is a {type(found).__name__}, not callable; {contract}")
    return found


@contextmanager
def in_one_line(source: str) -> Iterator[None]:
    """What the user's code raises becomes an `InputError` of one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        text = text if len(text) <= 200 else f"{text[:199]}…"
        raise InputError(f"{source}: {type(error).__name__}: {text or 'no reason given'}") from None
