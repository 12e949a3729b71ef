"""A signal must end a long run even where its exception was lost: Python ignores what is raised in a finalizer."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def signals_kept() -> Iterator[Callable[[], None]]:
    """Gives a function to be called between two pieces of work: it raises again what a signal raised in vain."""
    came: list[tuple[Handler, int]] = []

    def kept(handler: Handler) -> Handler:
        def note(number: int, frame: FrameType | None) -> object:
            came.append((handler, number))
            return handler(number, frame)

        return note

    def raise_again() -> None:
        for handler, number in came[:1]:
            handler(number, None)

    before: dict[int, Handler] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in NUMBERS}
        before = {number: handler for number, handler in handlers.items() if callable(handler)}
        for number, handler in before.items():
            signal.signal(number, kept(handler))
    try:
        yield raise_again
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
