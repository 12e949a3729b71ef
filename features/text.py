"""A convolution as text: ``n32c256h14w14k256r3s3p1u1``, the field's flags ``-n 32 -c 256 -H 14 …``, or a line of
MIOpenDriver, as MIOpen itself logs it (``MIOPEN_ENABLE_LOGGING_CMD=1``):
``./bin/MIOpenDriver convfp16 -n 32 -c 256 -H 14 -W 14 -k 256 -y 3 -x 3 -p 1 -q 1 -m conv -g 1 -F 1 -t 1``.

Source of the driver's names: ROCm/MIOpen, driver/conv_driver.hpp.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from packaging.version import Version

from .conv import LETTERS, Conv
from .errors import InputError
from .problem import SIZE_COLUMNS

FLAGS: dict[str, str] = {f"-{flag}": name for flag, name in zip("ncHWkyxpquvljg", SIZE_COLUMNS, strict=True)}
"""Flag (as MIOpenDriver names them) → field of `Conv`."""
REQUIRED = ("n", "c", "h", "k", "r")
MAX_DIGITS = 10
RELEASE = r"\d{1,18}(?:\.\d{1,18})*(?:[._-]?(?:dev|a|b|rc|post)\d{1,18})*"
"""A release with its stages, as it may stand inside another text."""
EXAMPLE = "n32c256h14w14k256r3s3p1u1"


def parse(text: str, **settings: str) -> Conv:
    """The `Conv` that ``text`` names; ``settings`` are dtype, math, layout and direction.

    Defaults: w=h, s=r, p=0, q=p, u=1, v=u, l=1, j=l, g=1. A text beginning with ``-`` is read as flags; what a line of
    MIOpenDriver says of element type, direction and layout counts before ``settings``. Raises `InputError` naming the
    part that is wrong.
    """
    text = text.strip()
    if is_driver_line(text.split()):
        flags, driver_settings = read_driver_line(text.split())
        return parse_flags(flags, **settings | driver_settings)
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


def parse_flags(words: list[str], **settings: str) -> Conv:
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


def version_number(version: str) -> tuple[int, ...]:
    """The first dotted number in a version text: ``7.6.4`` → (7, 6, 4), ``find-db v2`` → (2,)."""
    number = re.search(r"\d+(?:\.\d+)*", str(version))
    return tuple(int(part) for part in number[0].split(".")) if number else (0,)


def version_key(version: str) -> tuple[Version, str]:
    """A version for ordering, as PEP 440 has it: 1.3.0.dev1 < 1.3.0rc9 < 1.3.0rc20 < 1.3.0 < 1.3.0.post1 < 1.3.1.

    A text that is no such version goes by the first one in it (``rocm-6.1``, ``7.6.5-cuda10``), one without a number
    comes first; texts of one version go by the alphabet.
    """
    try:
        return Version(version), version
    except ValueError:
        inner = re.search(RELEASE, version)
        return Version(inner[0] if inner else "0"), version


def newest(versions: Iterable[str]) -> str:
    """The newest of some versions by `version_key`, "" of none."""
    return max(versions, key=version_key, default="")


def version_column(version: str) -> float:
    """A version as one number: 7.6.4 → 7.0604, so that a threshold separates releases."""
    return sum(part / 100.0**position for position, part in enumerate(version_number(version)[:3]))


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


DRIVER_DTYPES = {"conv": "fp32", "convfp16": "fp16", "convbfp16": "bf16", "convint8": "int8"}
"""First word → element type."""
DRIVER_DIRECTIONS = {"1": "fwd", "2": "bwd_data", "4": "bwd_filter"}
"""Value of ``-F`` → direction; sums ask for several at once."""
DRIVER_LAYOUTS = ("-I", "--in_layout", "-O", "--out_layout", "-f", "--fil_layout")
DRIVER_IGNORED = frozenset(
    (
        "-t",
        "--time",
        "-V",
        "--verify",
        "-i",
        "--iter",
        "-w",
        "--wall",
        "-s",
        "--search",
        "-P",
        "--printconv",
        "-S",
        "--solution",
    )
)
"""How the driver runs, not what: a flag and its value change nothing about the time."""


def is_driver_line(words: Sequence[str]) -> bool:
    """True where a name of the driver stands before the flags."""
    return any(word in DRIVER_DTYPES for word in words[:2]) or (bool(words) and words[0].endswith("MIOpenDriver"))


def read_driver_line(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The flags of the problem itself, and the settings (dtype, direction, layout) that the line names.

    Raises `InputError` for another operation, a direction of several, a depth, or a mode other than convolution.
    """
    text = " ".join(words)
    rest = list(words[1:] if words[0].endswith("MIOpenDriver") else words)
    if not rest or rest[0] not in DRIVER_DTYPES:
        raise InputError(f"{text!r} is no convolution of MIOpenDriver; known: {', '.join(DRIVER_DTYPES)}")
    settings = {"dtype": DRIVER_DTYPES[rest[0]]}
    flags: list[str] = []
    if len(rest) % 2 == 0:
        raise InputError(f"{text!r} has a flag without a value")
    for flag, value in zip(rest[1::2], rest[2::2], strict=True):
        if flag in ("-F", "--forw"):
            if value not in DRIVER_DIRECTIONS:
                raise InputError(f"-F {value} asks for several directions; give 1, 2 or 4")
            settings["direction"] = DRIVER_DIRECTIONS[value]
        elif flag in DRIVER_LAYOUTS:
            settings["layout"] = value
        elif flag in ("-m", "--mode"):
            if value != "conv":
                raise InputError(f"-m {value}: only convolutions are known, -m conv")
        elif flag not in DRIVER_IGNORED:
            flags += [flag, value]
    return flags, settings
