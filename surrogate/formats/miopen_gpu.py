"""The GPU that a find-db's file name says it was measured on."""

import re
from pathlib import Path

_NAME = re.compile(
    r"gfx([89][0-9a-f]{2}|1[0-9][0-9a-f]{2})(?:_(\d+)|([0-9a-f]{2,3}))?(?![0-9a-f])", re.IGNORECASE
)
_KNOWN = {
    ("gfx900", 56): "Vega 56", ("gfx900", 64): "MI25", ("gfx906", 60): "MI50", ("gfx906", 64): "MI60",
    ("gfx908", 120): "MI100", ("gfx90a", 104): "MI210", ("gfx90a", 110): "MI250", ("gfx942", 304): "MI300X",
    ("gfx1030", 36): "Navi21", ("gfx1030", None): "Navi21",
}  # fmt: skip
"""(architecture, compute units) → GPU. RDNA parts count work-group processors."""


def gpu_of_file(path: str | Path) -> tuple[str, int | None]:
    """(GPU, compute units), as in ``gfx90a68.HIP.fdb.txt`` → MI210 with 0x68 = 104; ("", None) where none is
    named.

    The units follow the architecture in hexadecimal, or in decimal after an underscore. Source: MIOpen's
    GetDbBasename.
    """
    match = _NAME.search(Path(path).name)
    if not match:
        return "", None
    architecture = f"gfx{match[1].lower()}"
    units = int(match[2]) if match[2] else int(match[3], 16) if match[3] else None
    shown = architecture if units is None else f"{architecture}_{units}"
    return _KNOWN.get((architecture, units), shown), units
