"""Every ATen call while a block runs: a dispatch mode under autograd, with the module that each call belongs to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

Plain = Callable[[Any], Any]


class Recorded(NamedTuple):
    """One call: ``target`` as ``aten::add.Tensor``, arguments by their schema's names (defaults included)."""

    target: str
    module: str
    arguments: dict[str, Any]
    results: list[Any]


@contextmanager
def recording(plain: Plain) -> Iterator[list[Recorded]]:
    """The calls made inside, in order; in a backward pass the module is that of the forward call.

    ``plain`` turns every argument into something without tensors: a tensor held here would make autograd copy it.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.module_tracker import ModuleTracker

    calls: list[Recorded] = []
    tracker = ModuleTracker()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            given = {name: plain(value) for name, value in _named(func, args, kwargs or {}).items()}
            results = plain(list(result) if isinstance(result, list | tuple) else [result])
            calls.append(Recorded(func.name(), _deepest(tracker.parents), given, results))
            return result

    with tracker, Recorder():
        yield calls


def _deepest(names: set[str]) -> str:
    """The innermost module's path without its root's class name; nothing outside all modules."""
    deepest = max(names, key=lambda name: (name.count("."), name != "Global"), default="Global")
    return deepest.partition(".")[2]


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = func._schema.arguments
    found = {one.name: one.default_value for one in arguments if one.has_default_value()}
    found |= {one.name: value for one, value in zip(arguments, args, strict=False)}
    return found | kwargs
