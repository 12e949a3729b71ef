"""Import a callable from a module or a file that a user names."""

import importlib.util
import sys
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path

from .errors import InputError, one_line_errors


def imported_callable(source: str, contract: str) -> Callable[..., object]:
    """Return the callable that ``module:callable`` or ``file.py:callable`` names.

    Modules of the current folder are found, too. ``file.py`` without a name means the only public function of the file.
    The import runs the code of the user's module, as ``python -m`` does. Raises `InputError`, with ``contract`` as the
    remedy, if there is no such callable or if the import fails.
    """
    module, _, name = source.partition(":")
    folder = Path.cwd()
    if module.endswith(".py"):
        folder = Path(module).resolve().parent
        module = Path(module).stem
    if not module or not (name or source.endswith(".py")):
        raise InputError(f"{source!r} names no function; write module:callable; {contract}")
    folder_path = str(folder)
    added = folder_path not in sys.path
    if added:
        sys.path.insert(0, folder_path)
    try:
        with one_line_errors(source):
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                raise InputError(f"{source}: no module {module} is in this folder or on PYTHONPATH; {contract}")
            target: object = importlib.import_module(module)
            parts = (name or _only_function(source, target)).split(".")
            if not hasattr(target, parts[0]):
                listed = ", ".join(_functions(target)) or "no function"
                raise InputError(f"{source}: {module} has no {parts[0]}; name one that it defines: {listed}")
            for part in parts:
                target = getattr(target, part)
    finally:
        if added and folder_path in sys.path:
            sys.path.remove(folder_path)
    if not callable(target):
        raise InputError(f"{source}: is a {type(target).__name__}, not callable; {contract}")
    return target


def _only_function(source: str, module: object) -> str:
    """Return the name of the only public function that a module defines. Raises `InputError` for none or several."""
    names = _functions(module)
    if len(names) != 1:
        listed = f"has {', '.join(names)}" if names else "defines no function"
        raise InputError(f"{source}: {listed}; name one of its functions, as in {source}:{(names or ['build'])[0]}")
    return names[0]


def _functions(module: object) -> list[str]:
    """Return the names of the public functions that a module defines."""
    functions = {name: value for name, value in vars(module).items() if isfunction(value) and not name.startswith("_")}
    return [name for name, value in functions.items() if value.__module__ == vars(module)["__name__"]]
