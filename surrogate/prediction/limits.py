"""What a caller allows: workspace, determinism, how many candidates."""

from dataclasses import dataclass

from surrogate.features.errors import InputError
from surrogate.prediction.selection import Estimate
from surrogate.prediction.text import binary_size, parse_bytes


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
