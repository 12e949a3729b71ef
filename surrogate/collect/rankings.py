"""Logs of ``--heuristic-only`` → one table: a row per (GPU, problem, ranked engine), without status and time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.collect.log import Contents, Header
from surrogate.collect.merge import SETTING_COLUMNS, Merged
from surrogate.collect.records import conv_of
from surrogate.features.errors import InputError
from surrogate.features.problem import SIZE_COLUMNS

COLUMNS = (
    *SETTING_COLUMNS, *SIZE_COLUMNS, "algorithm", "heuristic_rank", "heuristic_algorithm", "workspace_bytes",
    "deterministic", "networks", "origin",
)  # fmt: skip


def is_ranking(header: Header | None) -> bool:
    """True for the header of a log that holds rankings alone."""
    return header is not None and bool(header.protocol.get("heuristic_only"))


def merge_rankings(logs: Sequence[tuple[Path, Contents]]) -> Merged:
    """The rankings of all ``logs``; of a problem ranked twice for one GPU and version, the later file's counts.

    Raises `InputError` where no log ranks an engine.
    """
    rankings: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    runs: list[dict[str, Any]] = []
    for path, contents in logs:
        assert contents.header is not None  # `is_ranking` has looked at it
        device = contents.header.device
        runs.append(contents.header.to_dict())
        for record in contents.records:
            if record["kind"] == "problem":
                key = (device.gpu, device.library, device.library_version)
                try:
                    rankings[*key, record["problem"]] = _rows(key, record)
                except (KeyError, TypeError, AttributeError, ValueError) as error:
                    raise InputError(f"{path}: a record is damaged ({error!r}); leave the file out") from None
    rows = [row for ranking in rankings.values() for row in ranking]
    if not rows:
        raise InputError(
            f"{', '.join(str(path) for path, _ in logs)}: no engine is ranked; collect some first"
        )
    frame = pd.DataFrame(rows, columns=pd.Index(COLUMNS))
    frame = frame.astype({"workspace_bytes": "float64", "deterministic": "boolean"})
    unranked = sum(not ranking for ranking in rankings.values())
    return Merged(frame, pd.DataFrame(), {"runs": runs, "unranked_problems": unranked}, "listed")


def _rows(key: Sequence[str], record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An engine's first place counts; one that cuDNN ranks but refuses to finalise has no row."""
    ok = [entry for entry in record["heuristic"] if entry["status"] == "ok"]
    first = {entry["algorithm"]: entry for entry in reversed(ok)}
    problem = conv_of(record["problem"]).to_dict()
    return [
        {
            **dict(zip(SETTING_COLUMNS[:3], key, strict=True)),
            **problem,
            "algorithm": name,
            "heuristic_rank": rank,
            "heuristic_algorithm": ok[0]["algorithm"],
            "workspace_bytes": first[name].get("workspace_bytes"),
            "deterministic": first[name].get("deterministic"),
            "networks": ",".join(record["networks"]) or None,
            "origin": record["origin"],
        }
        for rank, name in enumerate(dict.fromkeys(entry["algorithm"] for entry in ok), 1)
    ]
