"""Picks as JSON.

``{kind: "seer-picks", schema, gpu, library, library_version, workspace_limit_bytes, deterministic, model, data,
picks: [{problem, <14 sizes>, dtype, math, layout, direction, algorithm, enum, solver, time_us, lower_us, upper_us,
workspace_bytes, source, in_domain, fallbacks: [{algorithm, enum, solver, time_us, workspace_bytes}]}],
infeasible: [{problem, dtype, math, layout, direction, excluded: [{algorithm, reason}]}]}``. ``enum`` is the library's
own number, null where it has none; ``solver`` stands only where solvers are chosen; fallbacks are in order of time.
"""

import json
from typing import Any

from surrogate.features.algorithms import algorithm
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.prediction.export.picks import Candidate, Picks, Ranking

KIND = "seer-picks"
SCHEMA = 1
"""History: 1, the first."""


def json_table(picks: Picks) -> str:
    """The text, one pick a line."""
    first = picks.rankings[0]
    head = {
        "kind": KIND,
        "schema": SCHEMA,
        "gpu": first.gpu,
        "library": first.library,
        "library_version": first.library_version,
        "workspace_limit_bytes": picks.workspace_limit,
        "deterministic": picks.deterministic,
        "model": picks.model,
        "data": picks.data,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    made = [json.dumps(_pick(conv, ranking)) for conv, ranking in picks.feasible]
    refused = [json.dumps(_refused(conv, ranking)) for conv, ranking in picks.infeasible]
    return "\n".join(
        ["{", *lines, f' "picks": {_array(made)},', f' "infeasible": {_array(refused)}', "}", ""]
    )


def _array(lines: list[str]) -> str:
    return "[" + ",".join(f"\n  {line}" for line in lines) + ("\n ]" if lines else "]")


def _pick(conv: Conv, ranking: Ranking) -> dict[str, Any]:
    best, *others = ranking.candidates
    return {
        "problem": str(conv),
        **conv.to_dict(),
        **_candidate(best, ranking.library, conv.direction),
        "lower_us": best.lower_us,
        "upper_us": best.upper_us,
        "source": best.source,
        "in_domain": ranking.in_domain,
        "fallbacks": [_candidate(other, ranking.library, conv.direction) for other in others],
    }


def _candidate(one: Candidate, library: str, direction: str) -> dict[str, Any]:
    values: dict[str, Any] = {"algorithm": one.algorithm, "enum": _enum(one.algorithm, library, direction)}
    if one.solver:
        values["solver"] = one.solver
    return {**values, "time_us": one.time_us, "workspace_bytes": int(one.workspace_bytes)}


def _enum(name: str, library: str, direction: str) -> int | None:
    try:
        value = algorithm(name, library, direction).enum
    except InputError:
        return None
    return value if value >= 0 else None


def _refused(conv: Conv, ranking: Ranking) -> dict[str, Any]:
    settings = {name: getattr(conv, name) for name in ("dtype", "math", "layout", "direction")}
    excluded = [{"algorithm": one.algorithm, "reason": one.reason} for one in ranking.excluded]
    return {"problem": str(conv), **settings, "excluded": excluded}
