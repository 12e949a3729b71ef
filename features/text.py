"""A convolution problem as text: ``n32c256h14w14k256r3s3p1u1``, or the field's flags ``-n 32 -c 256 -H 14 …``.

Library versions as numbers, too.
"""

import re
from typing import Any

from .conv import Conv
from .errors import InputError

LETTERS = {
    "n": "n", "c": "c", "h": "h", "w": "w", "k": "k", "r": "r", "s": "s", "p": "pad_h", "q": "pad_w",
    "u": "stride_h", "v": "stride_w", "l": "dilation_h", "j": "dilation_w", "g": "groups",
}  # fmt: skip
"""Letter of the text form → field of `Conv`."""
FLAGS = {
    "-n": "n", "-c": "c", "-H": "h", "-W": "w", "-k": "k", "-y": "r", "-x": "s", "-p": "pad_h", "-q": "pad_w",
    "-u": "stride_h", "-v": "stride_w", "-l": "dilation_h", "-j": "dilation_w", "-g": "groups",
}  # fmt: skip
"""Flag (as MIOpenDriver names them) → field of `Conv`."""
REQUIRED = ("n", "c", "h", "k", "r")
MAX_DIGITS = 10
EXAMPLE = "n32c256h14w14k256r3s3p1u1"


def parse(text: str, **settings: Any) -> Conv:
    """The `Conv` that ``text`` names; ``settings`` are dtype, math, layout and direction.

    Defaults: w=h, s=r, p=0, q=p, u=1, v=u, l=1, j=l, g=1. A text beginning with ``-`` is read as flags.
    Raises `InputError` naming the part that is wrong.
    """
    text = text.strip()
    if text.startswith("-"):
        return parse_flags(text.split(), **settings)
    sizes: dict[str, int] = {}
    position = 0
    for match in re.finditer(r"([a-z])(\d+)", text):
        if match.start() != position:
            break
        position = match.end()
        _add(sizes, LETTERS, match[1], match[2], text)
    if position != len(text) or not text:
        raise InputError(f"problem {text!r} is not readable at {text[position:]!r}; it looks like {EXAMPLE}")
    return _build(sizes, text, LETTERS, settings)


def parse_flags(words: list[str], **settings: Any) -> Conv:
    """The `Conv` that a list of flags and values names, as in ``["-n", "32", "-c", "256", …]``."""
    text = " ".join(words)
    if len(words) % 2:
        raise InputError(f"problem {text!r} has a flag without a value; each flag takes one whole number")
    sizes: dict[str, int] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        if not re.fullmatch(r"\d+", value):
            raise InputError(f"{flag} {value!r} in problem {text!r}: a whole number is needed")
        _add(sizes, FLAGS, flag, value, text)
    return _build(sizes, text, FLAGS, settings)


def to_flags(conv: Conv) -> list[str]:
    """All 14 flags with their values, ready for `parse_flags`."""
    return [word for flag, name in FLAGS.items() for word in (flag, str(getattr(conv, name)))]


def version_number(version: str) -> tuple[int, ...]:
    """The first dotted number in a version text, for ordering: ``7.6.4`` → (7, 6, 4), ``find-db v2`` → (2,)."""
    number = re.search(r"\d+(?:\.\d+)*", str(version))
    return tuple(int(part) for part in number[0].split(".")) if number else (0,)


def version_column(version: str) -> float:
    """A version as one number: 7.6.4 → 7.0604, so that a threshold separates releases."""
    return sum(part / 100.0**place for place, part in enumerate(version_number(version)[:3]))


def _add(sizes: dict[str, int], names: dict[str, str], key: str, value: str, text: str) -> None:
    if key not in names:
        raise InputError(f"{key!r} in problem {text!r} is unknown; known: {' '.join(names)}")
    if names[key] in sizes:
        raise InputError(f"{key!r} stands twice in problem {text!r}; give it once")
    if len(value) > MAX_DIGITS:
        raise InputError(f"{key} has {len(value)} digits in a problem; sizes have at most {MAX_DIGITS}")
    sizes[names[key]] = int(value)


def _build(sizes: dict[str, int], text: str, names: dict[str, str], settings: dict[str, Any]) -> Conv:
    missing = [key for key, field in names.items() if field in REQUIRED and field not in sizes]
    if missing:
        raise InputError(f"problem {text!r} lacks {', '.join(missing)}; it looks like {EXAMPLE}")
    return Conv(**sizes, **settings)
