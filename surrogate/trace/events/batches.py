"""Read the events of a JSON file in batches, so that memory holds one batch and never the whole file.

msgspec parses the text, and it also proves that a batch ends between two events. The strings, lists and objects that
are open at a position of a JSON text depend only on the text before it. Therefore the text up to a guessed border,
closed by ``]``, is valid JSON if and only if the border lies between two events. A guess is a closing brace, a comma
and an opening brace.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from surrogate.features.errors import check_node_count

BATCH_BYTES = 1 << 20
"""The minimum size of a batch except the last. Its parsed objects take several times as much, but fit in a cache."""
_LIST = re.compile(rb'^(?:\xef\xbb\xbf)?\s*\[|"traceEvents"\s*:\s*\[')
_KEY_BYTES = 64
"""The length of text that is searched again for a key that is split between two pieces."""
_BORDER = re.compile(rb"\}\s*,\s*(?=\{)")
_TRIES = 4
"""The number of borders to try before the batch grows; an event may contain a list of objects or a text like one."""
_TAIL = 12  # characters; a number or literal that the end of the file cuts fails this close to the end


class EventFile:
    """The entries of ``traceEvents``, or of the list that the file is, as an iterator of lists.

    ``pieces`` are the file's bytes. After the iteration, ``header`` holds the file's keys, with ``traceEvents`` as an
    empty list if it is a list. ``ends_early`` is the parser's message if the file was cut; the last batch then holds
    the complete objects with a phase. Raises `json.JSONDecodeError`, another `ValueError` or `RecursionError` for
    damage.
    """

    def __init__(self, pieces: Iterable[bytes], batch_bytes: int = BATCH_BYTES) -> None:
        self.header: dict[str, Any] = {}
        self.ends_early = ""
        self._pieces = iter(pieces)
        self._batch_bytes = batch_bytes

    def __iter__(self) -> Iterator[list[Any]]:
        opening, text = self._opened()
        batch_bytes = self._batch_bytes
        for piece in self._pieces if opening else ():
            text += piece
            if len(text) >= batch_bytes:
                batch, end = _first_batch(text)
                batch_bytes = self._batch_bytes if batch else 2 * batch_bytes
                del text[:end]
                yield batch
        text += b"".join(self._pieces)
        text[:0] = opening
        try:
            document = _parsed(text)
        except json.JSONDecodeError as error:
            if not _at_the_end(error):
                raise
            self.ends_early = error.msg
            yield _events_before_the_end(text)
            return
        self.header |= document if isinstance(document, dict) else {"traceEvents": document}
        if isinstance(events := self.header.get("traceEvents"), list):
            self.header["traceEvents"] = []
            yield events

    def _opened(self) -> tuple[bytes, bytearray]:
        """Return the text before the next event that makes it valid JSON, and the text of the events so far.

        The first is b"" if the file has no list of events.
        """
        text = bytearray()
        for piece in self._pieces:
            searched = len(text)
            text += piece
            if not (found := _LIST.search(text, max(searched - _KEY_BYTES, 0))):
                continue
            if text[found.start()] != ord('"'):
                return b"[", text[found.end() :]
            with suppress(ValueError, RecursionError):
                # The text before the key is the beginning of an object, unless the key is inside another value.
                self.header = _parsed(text[: found.start()] + b'"traceEvents":[]}')
                return b'{"traceEvents":[', text[found.end() :]
            break
        return b"", text


def _first_batch(text: bytearray) -> tuple[list[Any], int]:
    """Return the events up to the last border of ``text``, and the position after it; ([], 0) if every guess failed."""
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
    """Parse a JSON text with msgspec, or with Python's own parser if msgspec refuses it.

    msgspec refuses NaN, control characters, half of a surrogate pair, and bytes that are not UTF-8.
    """
    check_node_count(text)
    try:
        return msgspec.json.decode(text)
    except ValueError:
        return json.loads(text.decode("utf-8-sig", "replace"), strict=False)


def _at_the_end(error: json.JSONDecodeError) -> bool:
    """Return whether the text is the beginning of a JSON text."""
    return error.msg.startswith("Unterminated") or error.pos >= len(error.doc.rstrip()) - _TAIL


def _events_before_the_end(text: bytearray) -> list[Any]:
    """Return the complete objects with a phase in a text that was cut."""
    events: list[Any] = []

    def keep_event(entry: dict[str, Any]) -> dict[str, Any]:
        if entry.get("ph") is not None:
            events.append(entry)
        return entry

    with suppress(json.JSONDecodeError):
        json.JSONDecoder(object_hook=keep_event, strict=False).decode(text.decode("utf-8-sig", "replace"))
    return events
