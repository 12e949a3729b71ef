"""A command line of MIOpenDriver, as MIOpen itself logs it (``MIOPEN_ENABLE_LOGGING_CMD=1``): its problem and settings.

``./bin/MIOpenDriver convfp16 -n 32 -c 256 -H 14 -W 14 -k 256 -y 3 -x 3 -p 1 -q 1 -m conv -g 1 -F 1 -t 1``. Source of
the names: ROCm/MIOpen, driver/conv_driver.hpp.
"""

from collections.abc import Sequence

DTYPES = {"conv": "fp32", "convfp16": "fp16", "convbfp16": "bf16", "convint8": "int8"}
"""First word → element type."""
DIRECTIONS = {"1": "fwd", "2": "bwd_data", "4": "bwd_filter"}
"""Value of ``-F`` → direction; sums ask for several at once."""
LAYOUT_FLAGS = ("-I", "--in_layout", "-O", "--out_layout", "-f", "--fil_layout")
PASSED_OVER = frozenset(
    ("-t", "--time", "-V", "--verify", "-i", "--iter", "-w", "--wall", "-s", "--search", "-P", "--printconv", "-S",
     "--solution")
)  # fmt: skip
"""How the driver runs, not what: a flag and its value change nothing about the time."""


def is_driver_line(words: Sequence[str]) -> bool:
    """True where a name of the driver stands before the flags."""
    return any(word in DTYPES for word in words[:2]) or (bool(words) and words[0].endswith("MIOpenDriver"))


def read_driver_line(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The flags of the problem itself, and the settings (dtype, direction, layout) that the line names.

    Raises `InputError` for another operation, a direction of several, a depth, or a mode other than convolution.
    """
    from surrogate.features.errors import InputError

    text = " ".join(words)
    rest = list(words[1:] if words[0].endswith("MIOpenDriver") else words)
    if not rest or rest[0] not in DTYPES:
        raise InputError(f"{text!r} is no convolution of MIOpenDriver; known: {', '.join(DTYPES)}")
    settings = {"dtype": DTYPES[rest[0]]}
    flags: list[str] = []
    if len(rest) % 2 == 0:
        raise InputError(f"{text!r} has a flag without a value")
    for flag, value in zip(rest[1::2], rest[2::2], strict=True):
        if flag in ("-F", "--forw"):
            if value not in DIRECTIONS:
                raise InputError(f"-F {value} asks for several directions; give 1, 2 or 4")
            settings["direction"] = DIRECTIONS[value]
        elif flag in LAYOUT_FLAGS:
            settings["layout"] = value
        elif flag in ("-m", "--mode"):
            if value != "conv":
                raise InputError(f"-m {value}: only convolutions are known, -m conv")
        elif flag not in PASSED_OVER:
            flags += [flag, value]
    return flags, settings
