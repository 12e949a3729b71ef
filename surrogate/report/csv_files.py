"""The judged rows as CSV, one file per kind, with every column of `results.json`."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from surrogate.report.atomic import write_text
from surrogate.report.results import Results, Row, check_results

_PAIRED = ("paired_low", "paired_mid", "paired_high")
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

    ``paired_vs_heuristic`` becomes the columns paired_low, paired_mid, paired_high (log differences).
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
    flat = [_flat(row) for row in rows]
    seen = dict.fromkeys(key for row in flat for key in row)
    columns = [key for key in _FIRST if key in seen] + [key for key in seen if key not in _FIRST]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns or _FIRST)
    writer.writerows([_field(row.get(key)) for key in columns] for row in flat)
    return buffer.getvalue()


def _flat(row: Row) -> Row:
    flat: Row = {}
    for key, value in row.items():
        if key == "paired_vs_heuristic":
            flat.update(zip(_PAIRED, value or (None, None, None), strict=True))
        else:
            flat[key] = value
    return flat


def _field(value: Any) -> Any:
    """NaN and null are empty; a list or an object stands as JSON."""
    if value is None or value != value:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
