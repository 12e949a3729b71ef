"""What a caller allows: workspace, determinism, how many candidates."""

import re
from dataclasses import dataclass

from surrogate.features.errors import InputError
from surrogate.prediction.selection import Estimate
from surrogate.report.tables import binary_size

UNITS = {
    "": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 2**10, "kib": 2**10, "mi": 2**20, "mib": 2**20, "gi": 2**30, "gib": 2**30, "ti": 2**40, "tib": 2**40,
}  # fmt: skip
"""Unit in lower case → bytes: decimal ones as SI has them, binary ones with an i."""


def parse_bytes(text: str) -> int:
    """Bytes from ``64MiB``, ``1GB``, ``1.5 GiB`` or ``1048576``. Raises `InputError` for anything else."""
    parts = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", text)
    if not parts or parts[2].lower() not in UNITS:
        raise InputError(
            f"size {text!r} is not readable; write bytes, or a unit, as in 1048576, 64MiB or 1GB"
        )
    whole, _, decimals = parts[1].partition(".")
    factor = UNITS[parts[2].lower()]
    return int(whole) * factor + (int(decimals) * factor // 10 ** len(decimals) if decimals else 0)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a caller allows: workspace in bytes, whether two runs must give the same bits, and how many candidates."""

    workspace_bytes: int | None = None
    deterministic: bool = False
    top: int | None = None

    def excludes(self, one: Estimate) -> str | None:
        """Why a candidate is out, or None."""
        if self.deterministic and not one.candidate.deterministic:
            return "nondeterministic: it adds in an order that changes from run to run"
        if self.workspace_bytes is not None and one.workspace_bytes > self.workspace_bytes:
            return (
                f"needs {one.workspace_bytes} bytes of workspace ({binary_size(one.workspace_bytes)}),"
                f" the limit is {self.workspace_bytes} bytes"
            )
        return None


def checked_limits(workspace_limit: int | str | None, deterministic: bool, top: int | None) -> Limits:
    """``workspace_limit`` in bytes, or as in ``64MiB``.

    Raises `InputError` for a negative or unreadable workspace, or fewer than one candidate.
    """
    if isinstance(workspace_limit, str):
        workspace_limit = parse_bytes(workspace_limit)
    if workspace_limit is not None and workspace_limit < 0:
        raise InputError(f"workspace_limit is {workspace_limit}; give bytes, 0 or more")
    if top is not None and top < 1:
        raise InputError(f"top is {top}; give 1 or more candidates to keep")
    return Limits(workspace_limit, deterministic, top)
