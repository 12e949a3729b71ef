"""Damage: random edits of bytes, text and JSON, drawn from a seeded generator so that every case comes back."""

import json
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

TOKENS = (
    b"\n", b"\r\n", b"\r", b",", b'"', b"'", b";", b"=", b"-", b"0", b"\0", b"\x1b[31m", b"\xff",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf", b"  ", b"\t", b"(", b"[", b"]", b"{", b"}", b":", b"nan", b"NaN", b"-inf", b"Infinity", b"1e999",
    b"-1", b"1e308", b"99999999999999999999", b"9" * 5000, b"0x10", b"1_000", b"null", b"true", b"\\ud800", b"\\",
    b"..", b"../../x", b"%s%n", b"<&>", "½٣".encode(), b"A" * 3000,
)  # fmt: skip
"""Pieces that trip parsers: separators, signs, numbers out of range, halves of characters, control codes."""

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 0.5, -0.0, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400,
    1e308, -1e308,
    5e-324, math.nan, math.inf, -math.inf, "", " ", "x", "1", "-1", "nan", "1e999", "é½", "\0", "\n",
    "\x1b[31m", "\ud800",
    "x" * 3000, "../../x", "/etc/hosts", [], [None], [[]], {}, {"": None}, [1, 2, 3], ["x"], {"a": {"b": []}},
)  # fmt: skip
"""What a field of JSON may hold that its reader did not think of."""


def flip(data: bytes, random: Random) -> bytes:
    """Change a few bits."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 8)):
        if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def cut(data: bytes, random: Random) -> bytes:
    """Take out a piece."""
    at = random.randint(0, len(data))
    return data[:at] + data[at + random.choice((1, 2, 8, 100, len(data) // 2)) :]


def insert(data: bytes, random: Random) -> bytes:
    """Put in a token, or random bytes."""
    at = random.randint(0, len(data))
    piece = random.choice(TOKENS) if random.random() < 0.8 else random.randbytes(random.randint(1, 16))
    return data[:at] + piece + data[at + random.choice((0, 0, len(piece), 1)) :]


def duplicate(data: bytes, random: Random) -> bytes:
    """Repeat a piece, at most 64 times."""
    at = random.randint(0, len(data))
    piece = data[at : at + random.choice((1, 4, 40, 400))]
    return data[:at] + piece * random.choice((1, 2, 64)) + data[at:]


def truncate(data: bytes, random: Random) -> bytes:
    """Keep the beginning only."""
    return data[: random.randint(0, len(data))]


def move_lines(data: bytes, random: Random) -> bytes:
    """Drop, repeat or swap lines."""
    lines = data.split(b"\n")
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(3)
    if kind == 0:
        del lines[one]
    elif kind == 1:
        lines.insert(other, lines[one])
    else:
        lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


def retell_number(data: bytes, random: Random) -> bytes:
    """Put an odd number in the place of one run of digits."""
    starts = [
        i for i, c in enumerate(data[:20_000]) if 48 <= c < 58 and (i == 0 or not 48 <= data[i - 1] < 58)
    ]
    if not starts:
        return data
    at = end = random.choice(starts)
    while end < len(data) and 48 <= data[end] < 58:
        end += 1
    odd = (
        b"0",
        b"-1",
        b"1e999",
        b"nan",
        b"",
        b"2147483648",
        b"9223372036854775808",
        b"1e15",
        b"0.5",
        b"9" * 400,
        b"1" * 12,
    )
    return data[:at] + random.choice(odd) + data[end:]


def reencode(data: bytes, random: Random) -> bytes:
    """The same text in another encoding, or with other line ends."""
    text = data.decode("utf-8", "replace")
    return random.choice(
        (
            b"\xef\xbb\xbf" + data,
            data.replace(b"\n", b"\r\n"),
            data.replace(b"\n", b"\r"),
            text.encode("utf-16"),
            text.encode("utf-16-be"),
            text.encode("utf-32"),
            data.replace(b"\n", b"\n\0"),
            b"\0" * len(data),
        )
    )


def splice(data: bytes, other: bytes, random: Random) -> bytes:
    """The beginning of one file and the end of another."""
    return data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]


BYTES: tuple[Mutation, ...] = (
    flip, cut, insert, insert, duplicate, truncate, move_lines, retell_number, retell_number, reencode,
)  # fmt: skip


def damaged(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """One to three edits of bytes, now and then a splice with another file."""
    for _ in range(random.choice((1, 1, 2, 3))):
        if others and random.random() < 0.1:
            data = splice(data, random.choice(others), random)
        else:
            data = random.choice(BYTES)(data, random)
    return data


def json_structure(data: bytes, random: Random) -> bytes:
    """A JSON document with one or two of its values swapped for odd ones, dropped, repeated or nested."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return damaged(data, (), random)
    for _ in range(random.choice((1, 1, 2))):
        document = _changed(document, random)
    text = json.dumps(document)
    if random.random() < 0.1:  # a key twice: the later one counts
        at = text.find("{") + 1
        text = text[:at] + f'"schema": {json.dumps(random.choice(ODD_VALUES))}, ' * bool(at) + text[at:]
    return text.encode()


def json_lines_structure(data: bytes, random: Random) -> bytes:
    """JSON lines with one line's values changed as `json_structure` does."""
    lines = data.split(b"\n")
    filled = [i for i, line in enumerate(lines) if line.strip()]
    if not filled:
        return damaged(data, (), random)
    at = random.choice(filled)
    lines[at] = json_structure(lines[at], random)
    return b"\n".join(lines)


def _changed(document: Any, random: Random) -> Any:
    """``document`` with one change at a random place, found by a walk that prefers neither breadth nor depth."""
    if not isinstance(document, dict | list) or not document or random.random() < 0.05:
        return deepcopy(random.choice(ODD_VALUES))
    place = random.choice(list(document) if isinstance(document, dict) else range(len(document)))
    kind = random.random()
    if kind < 0.6:
        document[place] = _changed(document[place], random)
    elif kind < 0.8:
        document[place] = deepcopy(random.choice(ODD_VALUES))
    elif kind < 0.9:
        del document[place]
    elif isinstance(document, dict):
        document[random.choice(("", "schema", "name", "\0", "x" * 300))] = deepcopy(document[place])
    else:
        document.insert(place, deepcopy(document[place]))
    return document


def extremes(good: bytes) -> dict[str, bytes]:
    """Inputs of extreme size or shape, by name; ``good`` is a valid file that some of them grow from."""
    half = len(good) // 2
    return {
        "empty": b"",
        "mark only": b"\xef\xbb\xbf",
        "a megabyte of NUL": b"\0" * (1 << 20),
        "a field of 10 MB": good[:half] + b"9" * (10 << 20) + good[half:],
        "a line of 100 MB": good + b"x" * (100 << 20),
        "a million columns": b",".join([b"n"] * 1_000_000) + b"\n" + good,
        "a million columns beside the others": good.split(b"\n")[0] + b",n" * 1_000_000 + b"\n",
        "a million lines": good + b"\nx" * 1_000_000,
        "a million empty lines": good + b"\n" * 1_000_000,
        "100,000 brackets": b"[" * 100_000,
        "100,000 objects in one another": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "a million strings": b"[" + b'"x",' * 1_000_000 + b"1]",
        "a thousand times over": good * 1000,
    }
