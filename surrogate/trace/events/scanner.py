"""Chrome's trace JSON read event by event: memory holds one event and a piece of the file, never the whole."""

import codecs
import re
from collections.abc import Iterable, Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any

from surrogate.features.errors import InputError

MAX_VALUE_CHARS = 64 << 20
"""Longest single event or header value."""
_LITERAL = 12  # characters; a number or -Infinity cut by the end of a piece fails this close to it
_GAP = re.compile(r"[\s,]*")
_AFTER = frozenset(" \t\r\n,:]}")
_decode = JSONDecoder(strict=False).raw_decode


class Scanner:
    """The events of a trace file, one by one, and afterwards the file's other top-level values in ``header``.

    ``pieces`` are the file's bytes. Both layouts are read: an object with a ``traceEvents`` list, and a bare
    list. ``cut`` is True at the end where the file stops early: the events before are whole and usable.

    Raises `InputError` for what is no JSON, holds no events list, or nests or grows beyond reason.
    """

    def __init__(self, pieces: Iterable[bytes], source: str) -> None:
        self.header: dict[str, Any] = {}
        self.cut = False
        self.source = source
        self.found_events = False
        self._pieces = iter(pieces)
        self._text, self._at, self._more = "", 0, True
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")

    def __iter__(self) -> Iterator[Any]:
        try:
            first = self._peek()
            if first == "[":
                yield from self._events()
            elif first == "{":
                yield from self._object()
            else:
                raise self._refuse("is no JSON trace")
        except _CutError:
            if not self.found_events:
                raise self._refuse("ends before its first event") from None
            self.cut = True
        except RecursionError:
            raise self._refuse("nests too deeply") from None

    def _object(self) -> Iterator[Any]:
        self._at += 1
        while self._peek() != "}":
            key = self._value()
            if not isinstance(key, str) or self._peek() != ":":
                raise self._refuse("is damaged: a key and a colon should stand here")
            self._at += 1
            if key == "traceEvents" and self._peek() == "[":
                yield from self._events()
            else:
                self.header[key] = self._value()

    def _events(self) -> Iterator[Any]:
        self._at += 1
        self.found_events = True
        while self._peek() != "]":
            yield self._value()
        self._at += 1

    def _peek(self) -> str:
        """The next character that is neither space nor comma, left in place."""
        while True:
            self._at = _GAP.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read(1):
                raise _CutError

    def _value(self) -> Any:
        """The JSON value at the cursor; reads on while it is incomplete."""
        self._peek()
        while True:
            try:
                value, end = _decode(self._text, self._at)
            except JSONDecodeError as error:
                if self._broken(error):
                    raise self._refuse(f"is damaged ({error.msg})") from None
            except ValueError as error:  # a number of thousands of digits
                raise self._refuse(f"is damaged ({str(error).partition(';')[0]})") from None
            else:
                if self._ends(end) or not self._more:
                    self._at = end
                    return value
            left = len(self._text) - self._at
            if left > MAX_VALUE_CHARS:
                raise self._refuse(f"holds a value longer than {MAX_VALUE_CHARS:,} characters")
            if not self._read(left):
                raise _CutError

    def _ends(self, end: int) -> bool:
        """Whether the value that ends there is whole: a number may go on (``1.`` of ``1.5``) in the next piece."""
        return self._text[end : end + 1] in _AFTER or len(self._text) - end >= _LITERAL

    def _broken(self, error: JSONDecodeError) -> bool:
        """Whether more text cannot mend the value: the fault lies before the end of what is there."""
        return not error.msg.startswith("Unterminated") and error.pos < len(self._text) - _LITERAL

    def _read(self, least: int) -> bool:
        """Append at least ``least`` characters, dropping what is used; False at the end of the file."""
        if not self._more:
            return False
        parts, size = [self._text[self._at :]], 0
        while size < least:
            piece = next(self._pieces, None)
            if piece is None:
                self._more = False
                parts.append(self._decoder.decode(b"", final=True))
                break
            parts.append(self._decoder.decode(piece))
            size += len(parts[-1])
        self._text, self._at = "".join(parts), 0
        return size > 0 or bool(parts[-1])

    def _refuse(self, what: str) -> InputError:
        return InputError(
            f"{self.source}: {what}; give a PyTorch profiler trace (.json, .json.gz) or an Nsight Systems export"
            " (nsys export --type sqlite)"
        )


class _CutError(Exception):
    """The text ended where more was due."""
