"""The judged rows as CSV, one file per kind, with every column of `results.json`."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from surrogate.dataset.atomic import write_text
from surrogate.report.results import Results, Row, check_results

_ENDS = {2: ("low", "high"), 3: ("low", "mid", "high")}
_FIRST = (
    "model",
    "split",
    "stratum",
    "population",
    "gpu",
    "direction",
    "dtype",
    "math",
    "algorithm",
    "n",
    "shapes",
)


def write_csv(results: Results, directory: Path) -> list[Path]:
    """Write ``time_rows.csv`` and ``choice_rows.csv`` into ``directory``; null is an empty field.

    An interval becomes columns: ``paired_vs_heuristic`` paired_low, paired_mid, paired_high (in logs).
    """
    check_results(results)
    paths = []
    for kind in ("time_rows", "choice_rows"):
        path = Path(directory) / f"{kind}.csv"
        write_text(path, csv_text(results[kind]))
        paths.append(path)
    return paths


def csv_text(rows: list[Row]) -> str:
    """``rows`` as CSV text: the slice's columns first, the others in the order in which they first occur."""
    spread = {key: _ENDS[len(value)] for row in rows for key, value in row.items() if _is_span(value)}
    flat = [_flat(row, spread) for row in rows]
    seen = dict.fromkeys(key for row in flat for key in row)
    columns = [key for key in _FIRST if key in seen] + [key for key in seen if key not in _FIRST]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns or _FIRST)
    writer.writerows([_field(row.get(key)) for key in columns] for row in flat)
    return buffer.getvalue()


def _is_span(value: Any) -> bool:
    return isinstance(value, list) and len(value) in _ENDS


def _flat(row: Row, spread: dict[str, tuple[str, ...]]) -> Row:
    """``row`` with every interval in columns of its own, empty where it is null; what is no interval stays as it is."""
    flat: Row = {}
    for key, value in row.items():
        if key in spread and (value is None or (_is_span(value) and len(value) == len(spread[key]))):
            ends = value or [None] * len(spread[key])
            stem = key.removesuffix("_vs_heuristic")
            flat.update(zip((f"{stem}_{end}" for end in spread[key]), ends, strict=True))
        else:
            flat[key] = value
    return flat


def _field(value: Any) -> Any:
    """NaN and null are empty; a list or an object stands as JSON."""
    if value is None or value != value:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
