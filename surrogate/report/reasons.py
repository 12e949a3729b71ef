"""What could not be judged, and why."""

from dataclasses import dataclass

from surrogate.report.results import Results
from surrogate.report.rows import count, label

_KINDS = {"choice_rows": "choice", "time_rows": "time"}
_KEYS = ("split", "stratum", "population", "gpu", "direction", "dtype", "math", "algorithm")
SHOWN = 4


@dataclass(frozen=True, slots=True)
class Reason:
    """One model, one reason, and the slices it holds for, as in ``choice: ungrouped, Tesla T4``."""

    model: str
    reason: str
    slices: tuple[str, ...]

    @property
    def where(self) -> str:
        """The first slices by name and the number of the others."""
        more = len(self.slices) - SHOWN
        return "; ".join(self.slices[:SHOWN]) + (f"; and {more:,} more" if more > 0 else "")


def reasons(results: Results) -> list[Reason]:
    """Rows with n 0 grouped by model and reason, in the order of the results."""
    found: dict[tuple[str, str], list[str]] = {}
    for kind, name in _KINDS.items():
        rows = results[kind]
        keys = [
            key for key in _KEYS if len({label(row, key) for row in rows}) > 1
        ]  # else it tells nothing apart
        judged = {row["model"] for row in rows if count(row)}
        for row in rows:
            if count(row) == 0:
                reason = row.get("reason") or "no reason was recorded"
                parts = [label(row, key) for key in keys if label(row, key) != "all"]
                where = f"{name}: {', '.join(parts) or 'all'}" if row["model"] in judged else name
                found.setdefault((row["model"], reason.removeprefix(f"{row['model']} ")), []).append(where)
    return [Reason(model, reason, tuple(dict.fromkeys(slices))) for (model, reason), slices in found.items()]
