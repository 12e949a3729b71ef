"""Spans of a PyTorch model: its modules as layers, its operators below them. Needs torch, imported on use."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from surrogate.trace.spans.live import Tracer


@contextmanager
def module_spans(model: Any, tracer: Tracer, level: str = "layer") -> Iterator[None]:
    """A span of ``level`` around every call of a leaf module of ``model``, named by its path (``features.0``).

    Tags: ``type``, the module's class, and ``shape``, the first input's. Hooks are removed at the end. A module
    whose forward raises leaves no span.
    """
    handles, open_spans = [], {}
    for name, module in model.named_modules():
        if next(module.children(), None) is not None:
            continue

        def before(module: Any, inputs: Any, name: str = name) -> None:
            shape = tuple(getattr(inputs[0], "shape", ())) if inputs else ()
            opened = tracer.span(
                level, name or type(module).__name__, type=type(module).__name__, shape=shape
            )
            opened.__enter__()
            open_spans.setdefault(id(module), []).append(opened)

        def after(module: Any, inputs: Any, output: Any) -> None:
            open_spans[id(module)].pop().__exit__(None, None, None)

        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def operator_spans(tracer: Tracer, level: str = "operator") -> Iterator[None]:
    """A span of ``level`` around every operator that PyTorch dispatches on this thread, forward and backward."""
    if (
        level not in tracer.levels
    ):  # the dispatch mode itself costs time, so a level that is off installs none
        yield
        return
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with tracer.span(level, str(func)):
                return func(*args, **(kwargs or {}))

    with Mode():
        yield
