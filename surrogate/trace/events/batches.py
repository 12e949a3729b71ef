"""The events of a JSON file in batches: memory holds one of them, never the file.

msgspec parses, and it proves where a batch ends. What is open at a place of a JSON text (strings, lists, objects)
depends only on what stands before that place. So the text up to a guessed border, closed by ``]``, is a whole JSON list
if and only if the border lies between two events. A guess is a closing brace, a comma and an opening brace.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

BATCH_BYTES = 1 << 20
"""Least size of a batch, the last one aside; its parsed objects take several times as much, and fit in a cache."""
_LIST = re.compile(rb'^(?:\xef\xbb\xbf)?\s*\[|"traceEvents"\s*:\s*\[')
_KEY_BYTES = 64
"""How much of the text is searched again for a key that is split between two pieces."""
_BORDER = re.compile(rb"\}\s*,\s*(?=\{)")
_TRIES = 4
"""Borders that are tried before the batch grows: objects may stand in a list or a text inside of an event."""
_TAIL = 12  # characters; a number or a literal cut by the end of the file fails this close to it


class EventFile:
    """Iterating over it gives lists of the entries of ``traceEvents``, or of the list that the file is.

    ``pieces`` are the file's bytes. Afterwards ``header`` holds the file's keys, ``traceEvents`` an empty list where it
    is a list. ``ends_early`` is the parser's message where the file was cut; the last batch are then the objects before
    the cut that have a phase. Raises `json.JSONDecodeError`, another `ValueError` or `RecursionError` for damage.
    """

    def __init__(self, pieces: Iterable[bytes], batch_bytes: int = BATCH_BYTES) -> None:
        self.header: dict[str, Any] = {}
        self.ends_early = ""
        self._pieces = iter(pieces)
        self._batch_bytes = batch_bytes

    def __iter__(self) -> Iterator[list[Any]]:
        opening, text = self._opened()
        wanted = self._batch_bytes
        for piece in self._pieces if opening else ():
            text += piece
            if len(text) >= wanted:
                batch, end = _first_batch(text)
                wanted = self._batch_bytes if batch else 2 * wanted
                del text[:end]
                yield batch
        text += b"".join(self._pieces)
        text[:0] = opening
        try:
            whole = _parsed(text)
        except json.JSONDecodeError as error:
            if not _at_the_end(error):
                raise
            self.ends_early = error.msg
            yield _events_before_the_end(text)
            return
        self.header |= whole if isinstance(whole, dict) else {"traceEvents": whole}
        if isinstance(events := self.header.get("traceEvents"), list):
            self.header["traceEvents"] = []
            yield events

    def _opened(self) -> tuple[bytes, bytearray]:
        """How a text that goes on with the next event has to begin (b"": the file has no list of events), and what was
        read of the events."""
        text = bytearray()
        for piece in self._pieces:
            known = len(text)
            text += piece
            if not (found := _LIST.search(text, max(known - _KEY_BYTES, 0))):
                continue
            if text[found.start()] != ord('"'):
                return b"[", text[found.end() :]
            with suppress(ValueError, RecursionError):
                # What stands before the key is the beginning of an object, unless the key stands inside of something.
                self.header = _parsed(text[: found.start()] + b'"traceEvents":[]}')
                return b'{"traceEvents":[', text[found.end() :]
            break
        return b"", text


def _first_batch(text: bytearray) -> tuple[list[Any], int]:
    """The events up to the last border of ``text``, and where the next one begins; ([], 0) where no guess was right."""
    end = len(text)
    for _ in range(_TRIES):
        border = None
        while border is None and (end := text.rfind(b"}", 0, end)) >= 0:
            border = _BORDER.match(text, end)
        if border is None:
            break
        try:
            return _parsed(b"[%b]" % text[: end + 1]), border.end()
        except json.JSONDecodeError as error:
            if error.msg == "Extra data":  # the list ends before the border
                break
            if not _at_the_end(error):
                raise
    return [], 0


def _parsed(text: bytes | bytearray) -> Any:
    """A JSON text by msgspec; what that refuses (NaN, control characters, half of a surrogate pair, bytes that are no
    UTF-8) by Python's own parser."""
    try:
        return msgspec.json.decode(text)
    except ValueError:
        return json.loads(text.decode("utf-8-sig", "replace"), strict=False)


def _at_the_end(error: json.JSONDecodeError) -> bool:
    """Whether the text is the beginning of a JSON text."""
    return error.msg.startswith("Unterminated") or error.pos >= len(error.doc.rstrip()) - _TAIL


def _events_before_the_end(text: bytearray) -> list[Any]:
    """The objects with a phase that are whole in a text that was cut."""
    events: list[Any] = []

    def take(entry: dict[str, Any]) -> dict[str, Any]:
        if entry.get("ph") is not None:
            events.append(entry)
        return entry

    with suppress(json.JSONDecodeError):
        json.JSONDecoder(object_hook=take, strict=False).decode(text.decode("utf-8-sig", "replace"))
    return events
