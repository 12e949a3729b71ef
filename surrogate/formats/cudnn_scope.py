"""google-benchmark JSON of cudnn_scope / dlperf: every cuDNN algorithm of a convolution, in both generations.

How to get one: build c3sr/scope (2018) or rai-project/dlperf's benchmarks (2019) on the GPU and run ``scope
--benchmark_filter=CUDNN_CONV --benchmark_out=FILE.json --benchmark_out_format=json``; .gz is read as it is.
The second generation names GPU and cuDNN version in every benchmark that ran; for the first, give --gpu and
--library-version. Its time is one event pair around the API call, so launch gaps are in it.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.features.errors import InputError
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, read_bytes
from surrogate.formats.imported import KEY_COLUMNS, Imported, Progress, plural
from surrogate.formats.scope_entry import Entry, parse_entry


def read(
    paths: Sequence[str | Path],
    *,
    gpu: str | None = None,
    library_version: str | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Progress | None = None,
) -> Imported:
    """Benchmark files as dataset rows; repetitions of a key become one row: median, least, greatest, count.

    ``gpu`` and ``library_version`` replace what the files say. Raises `InputError` naming file and benchmark.
    """
    frames, notes = [], list[str]()
    for path in map(Path, paths):
        entries, skipped, cut = _entries(path, max_bytes, progress)
        frames.append(_frame(path, entries, gpu, library_version))
        if skipped:
            notes.append(
                f"{path.name}: {plural(skipped, 'benchmark')} left out: no convolution, or an aggregate"
            )
        if cut:
            notes.append(
                f"{path.name}: cut short in its last benchmark; {plural(len(entries), 'benchmark')} before"
                " it read"
            )
    return Imported(_aggregate(pd.concat(frames, ignore_index=True)), notes=tuple(notes))


def _entries(path: Path, max_bytes: int, progress: Progress | None) -> tuple[list[Entry], int, bool]:
    benchmarks, cut = _benchmarks(path, read_bytes(path, max_bytes=max_bytes, progress=progress))
    parsed = [parse_entry(item, f"{path}, benchmark {number}") for number, item in enumerate(benchmarks, 1)]
    entries = [entry for entry in parsed if entry is not None]
    if not entries:
        raise InputError(
            f"{path}: none of its {plural(len(parsed), 'benchmark')} is a cuDNN convolution"
            " (…CUDNN_CONV_…<…_ALGO_…>)"
        )
    return entries, len(parsed) - len(entries), cut


def _benchmarks(path: Path, data: bytes) -> tuple[list[Any], bool]:
    """The list ``benchmarks``, and whether the file ends before it does (a killed run leaves such files)."""
    text = data.decode("utf-8-sig", "replace")
    try:
        document, cut = json.loads(text), False
    except (ValueError, RecursionError) as error:
        end = text.rfind("},")
        try:
            document, cut = json.loads(text[: end + 1] + "]}"), True
        except (ValueError, RecursionError):
            raise InputError(
                f"{path}: not JSON ({error}); google-benchmark's --benchmark_out file is needed"
            ) from None
    found = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise InputError(
            f"{path}: has no list 'benchmarks'; google-benchmark's --benchmark_out file is needed"
        )
    return found, cut


def _frame(path: Path, entries: list[Entry], gpu: str | None, library_version: str | None) -> pd.DataFrame:
    """Raw rows. A benchmark that failed names neither GPU nor version: they are those of the rest of its
    file.
    """
    gpu = gpu or _one(path, "GPU", Counter(e.gpu for e in entries if e.gpu), "--gpu")
    version = library_version or _one(
        path, "cuDNN version", Counter(e.version for e in entries if e.version), "--library-version"
    )
    return pd.DataFrame(
        {
            "gpu": gpu,
            "library": "cudnn",
            "library_version": version,
            **{name: [getattr(e.conv, name) for e in entries] for name in entries[0].conv.__slots__},
            "algorithm": [e.algorithm for e in entries],
            "status": [e.status for e in entries],
            "time_us": [e.time_us for e in entries],
            "workspace_bytes": [e.workspace_bytes for e in entries],
            "find_time_us": [e.find_time_us for e in entries],
            "heuristic_algorithm": [e.heuristic_algorithm for e in entries],
            "origin": ["dlperf" if e.second_generation else "c3sr_scope" for e in entries],
        }
    )


def _one(path: Path, what: str, seen: Counter[str], option: str) -> str:
    if len(seen) != 1:
        said = "names no" if not seen else f"names {' and '.join(seen)} as its"
        raise InputError(f"{path}: {said} {what}; one is needed: give it with {option}")
    return next(iter(seen))


def _aggregate(raw: pd.DataFrame) -> pd.DataFrame:
    """One row per key: ok where any repetition is, the median of its times, its heuristic's first word."""
    key = list(KEY_COLUMNS)
    raw = raw.assign(_ok=(raw["status"] == "ok").to_numpy())
    raw = raw.sort_values("_ok", ascending=False, kind="stable")  # "first" below then prefers what ran
    grouped = raw.groupby(key, sort=False)
    out = grouped.agg(
        status=("status", "first"),
        time_us=("time_us", "median"),
        time_us_min=("time_us", "min"),
        time_us_max=("time_us", "max"),
        repeats=("time_us", "count"),
        workspace_bytes=("workspace_bytes", "max"),
        find_time_us=("find_time_us", "median"),
        heuristic_algorithm=("heuristic_algorithm", "first"),
        origin=("origin", "first"),
    )
    order = raw.assign(_at=raw.index).groupby(key, sort=False)["_at"].min()
    return out.loc[order.sort_values().index].reset_index()
