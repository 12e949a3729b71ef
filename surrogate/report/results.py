"""`results.json`: read, and checked as far as the tables and figures rely on it."""

import json
from pathlib import Path
from typing import Any

from surrogate.features.errors import InputError
from surrogate.features.regular_file import require_regular

SCHEMA = 1
"""Version of `results.json` this room reads. 1: time_rows and choice_rows, one object per judged slice."""

Row = dict[str, Any]
Results = dict[str, Any]

_TEXT = (
    "model",
    "split",
    "stratum",
    "gpu",
    "population",
    "algorithm",
    "direction",
    "dtype",
    "math",
    "reason",
)
_NUMBERS = {
    "time_rows": ("n", "shapes", "median_ape", "mape", "p90_ape", "rmspe", "gmae", "spearman"),
    "choice_rows": (
        "n", "shapes", "slowdown_macro", "ci_low", "ci_high", "slowdown_geomean", "slowdown_p95",
        "slowdown_max", "top1", "within_10pct", "top2_slowdown", "infeasible_picks",
    ),
}  # fmt: skip


def read_results(directory: Path) -> Results:
    """The checked content of ``directory/results.json``; `InputError` where it is missing or unreadable."""
    path = Path(directory) / "results.json"
    require_regular(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"no results.json in {directory}; `seer compare -o {directory}` writes one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not readable ({type(error).__name__}); write it again with seer compare"
        ) from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}); write it again with seer compare") from None
    if "\\ud" in text.lower() and not _is_text(content):
        raise InputError(
            f"{path} holds half a character (a lone surrogate); write it again with seer compare"
        )
    return check_results(content, str(path))


def check_results(results: Any, name: str = "results") -> Results:
    """``results`` itself if it follows the contract, else `InputError` naming the first fault."""
    if not isinstance(results, dict):
        raise InputError(
            f"{name} holds a {type(results).__name__}, not an object; write it again with seer compare"
        )
    _check_schema(results.get("schema"), name)
    if not isinstance(results.get("dataset", {}), dict):
        raise InputError(f"{name}: dataset is {results['dataset']!r:.60}; an object is needed")
    for kind, numbers in _NUMBERS.items():
        rows = results.get(kind)
        if not isinstance(rows, list):
            raise InputError(f"{name} has no list {kind}; write it again with seer compare")
        for index, row in enumerate(rows):
            _check_row(row, numbers, f"{name}: {kind}[{index}]")
    return results


def _is_text(content: Any) -> bool:
    """True if every text in ``content`` can be written as UTF-8, which JSON's escapes do not warrant."""
    try:
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check_schema(schema: Any, name: str) -> None:
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise InputError(f"{name}: schema is {schema!r:.60}; a whole number up to {SCHEMA} is needed")
    if schema > SCHEMA:
        raise InputError(
            f"{name} has schema {schema}, this version reads up to {SCHEMA}; update seer-surrogate"
        )


def _check_row(row: Any, numbers: tuple[str, ...], where: str) -> None:
    if not isinstance(row, dict) or not isinstance(row.get("model"), str):
        raise InputError(f"{where} is not an object with a model; write it again with seer compare")
    for key in _TEXT:
        if not isinstance(row.get(key), str | None):
            raise InputError(f"{where}: {key} is {row[key]!r:.60}; text or null is needed")
    for key in numbers:
        if not _is_number(row.get(key)):
            raise InputError(f"{where}: {key} is {row[key]!r:.60}; a number or null is needed")
    paired = row.get("paired_vs_heuristic")
    if paired is not None and not (
        isinstance(paired, list) and len(paired) == 3 and all(map(_is_number, paired))
    ):
        raise InputError(
            f"{where}: paired_vs_heuristic is {paired!r:.60}; [low, mid, high] or null is needed"
        )


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return value is None or isinstance(value, float)
