"""Picks for a list of problems as tables that other programs load: JSON, a C99 header, MIOpen's user find-db."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from surrogate.features.algorithms import algorithm
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.families import AnyProblem, family_of
from surrogate.features.problem import DIRECTIONS, DTYPES, LAYOUTS, MATHS, SIZE_COLUMNS
from surrogate.formats.miopen import DIRECTIONS as KEY_DIRECTIONS
from surrogate.formats.miopen import DTYPES as KEY_DTYPES
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.results import Ranked, Selection

KIND = "seer-picks"
SCHEMA = 1
"""Of the JSON. History: 1, the first."""
CHOICES = {"direction": DIRECTIONS, "dtype": tuple(DTYPES), "math": MATHS, "layout": LAYOUTS}
"""Field of a C key → its values; the header's enumerators number them in this order."""
FIELDS = (*SIZE_COLUMNS, *CHOICES)
HEADER = Path(__file__).with_name("picks.h.in")
"""The C header; its types are the same in every such header, so that several may be included together."""
IN_FIND_DB = {"fwd": "Fwd", "bwd_data": "BwdData", "bwd_filter": "BwdWeights"}
"""Direction → as the names of algorithms in MIOpen's find-db have it."""


@dataclass(frozen=True)
class Picks:
    """One selection for each distinct problem; ``model`` is the bundle's, ``data`` what it was fitted on."""

    selections: tuple[Selection, ...]
    workspace_limit: int | None
    deterministic: bool
    model: str
    data: str
    candidate: str = "algorithm"

    @property
    def feasible(self) -> list[Selection]:
        """Problems that something runs."""
        return [selection for selection in self.selections if selection.estimates]

    @property
    def infeasible(self) -> list[Selection]:
        """The others."""
        return [selection for selection in self.selections if not selection.estimates]

    @property
    def provenance(self) -> list[str]:
        """What a comment at the head of a table says, line by line."""
        first = self.selections[0]
        limit = "none" if self.workspace_limit is None else f"{self.workspace_limit} bytes"
        return [
            f"Predicted picks for {first.gpu}, {first.library} {first.library_version}, by SEER Surrogate.",
            f"Model {self.model}, fitted on {self.data}. Times are predictions, not measurements.",
            f"Workspace limit: {limit}; deterministic algorithms only: {'yes' if self.deterministic else 'no'}.",
            f"{len(self.feasible)} of {len(self.selections)} problems have a pick.",
        ]


def picks_for(
    predictor: Predictor,
    problems: Sequence[AnyProblem],
    *,
    workspace_limit: int | None = None,
    deterministic: bool = False,
    library_version: str | None = None,
) -> Picks:
    """Rank every distinct problem once. Raises `InputError` where there is no problem."""
    if not problems:
        raise InputError("no problem came; give at least one")
    distinct = tuple(dict.fromkeys(problems))
    selections = predictor.select_many(
        distinct, workspace_limit=workspace_limit, deterministic=deterministic, library_version=library_version
    )
    bundle = predictor.bundle
    kinds = dict.fromkeys(family_of(problem).name for problem in distinct)
    models = dict.fromkeys(bundle.parts[name].fitted.name for name in kinds)
    data = bundle.card.get("data", {}).get("name", "unnamed data")
    return Picks(
        tuple(selections), workspace_limit, deterministic, ", ".join(models), data=data, candidate=bundle.candidate
    )


def export(picks: Picks, form: str) -> str:
    """The picks as ``json``, ``c-header`` or ``miopen-user-db``.

    Raises `InputError` for picks that a form cannot hold.
    """
    return FORMS[form](picks)


def _convs(picks: Picks) -> list[tuple[Conv, Selection]]:
    """The problems with a pick. Raises `InputError` where there is none, or one is no convolution."""
    others = [s.problem.kind for s in picks.selections if not isinstance(s.problem, Conv)]
    if others:
        raise InputError(f"a problem is a {others[0]}; this form holds convolutions, use json")
    if not picks.feasible:
        raise InputError("no problem has a pick within the limits; the table would be empty")
    return [(selection.problem, selection) for selection in picks.feasible if isinstance(selection.problem, Conv)]


def enum_value(name: str, library: str, direction: str) -> int:
    """The library's own number of an algorithm. Raises `InputError` where it has none."""
    value = algorithm(name, library, direction).enum
    if value < 0:
        raise InputError(f"{library}'s {direction} algorithm {name} has no number; it cannot be exported")
    return value


def json_table(picks: Picks) -> str:
    """The text.

    ``{kind: "seer-picks", schema, gpu, library, library_version, workspace_limit_bytes, deterministic, model, data,
    picks: [{problem, <sizes and settings>, algorithm, enum, solver, time_us, lower_us, upper_us, workspace_bytes,
    source, in_domain, fallbacks: [{algorithm, enum, solver, time_us, workspace_bytes}]}], infeasible: [{problem,
    <settings>, excluded: [{algorithm, reason}]}]}``. ``enum`` is the library's own number, null where it has none;
    ``solver`` stands only where solvers are chosen; fallbacks are in order of time.
    """
    first = picks.selections[0]
    whole = {
        "kind": KIND, "schema": SCHEMA,
        **{name: getattr(first, name) for name in ("gpu", "library", "library_version")},
        "workspace_limit_bytes": picks.workspace_limit,
        **{name: getattr(picks, name) for name in ("deterministic", "model", "data")},
        "picks": list(map(_pick, picks.feasible)), "infeasible": list(map(_refused, picks.infeasible)),
    }  # fmt: skip
    return json.dumps(whole, indent=1) + "\n"


def _pick(selection: Selection) -> dict[str, object]:
    problem = selection.problem
    best, *others = selection.candidates
    return {
        "problem": str(problem), **problem.to_dict(), **_candidate(best, problem), "lower_us": best.lower_us,
        "upper_us": best.upper_us, "source": best.source, "in_domain": selection.in_domain,
        "fallbacks": [_candidate(other, problem) for other in others],
    }  # fmt: skip


def _candidate(ranked: Ranked, problem: AnyProblem) -> dict[str, object]:
    solver = {"solver": ranked.solver} if ranked.solver else {}
    return {
        "algorithm": ranked.algorithm,
        "enum": _enum(ranked, problem),
        **solver,
        "time_us": ranked.time_us,
        "workspace_bytes": int(ranked.workspace_bytes),
    }


def _enum(ranked: Ranked, problem: AnyProblem) -> int | None:
    try:
        return enum_value(ranked.algorithm, ranked.library, getattr(problem, "direction", ""))
    except InputError:
        return None


def _refused(selection: Selection) -> dict[str, object]:
    family = family_of(selection.problem)
    settings = dict(zip(family.setting_names, family.setting_of(selection.problem), strict=True))
    excluded = [candidate._asdict() for candidate in selection.excluded]
    return {"problem": str(selection.problem), **settings, "excluded": excluded}


def c_header(picks: Picks) -> str:
    """A table of picks with its lookup by binary search. Raises `InputError` where an algorithm has no number."""
    rows = sorted(((_key(conv), conv, ranking) for conv, ranking in _convs(picks)), key=lambda row: row[0])
    name = f"seer_{_identifier(picks.selections[0].gpu)}"
    enums = (
        f"enum {{ {', '.join(f'SEER_{value.upper()} = {i}' for i, value in enumerate(values))} }}; /* {field} */"
        for field, values in CHOICES.items()
    )
    return Template(HEADER.read_text()).substitute(
        name=name, guard=f"{name.upper()}_PICKS_H",
        comment="\n".join(f" * {_plain(line)}" for line in picks.provenance), enums="\n".join(enums),
        fields="\n".join(f"    int32_t {field};" for field in FIELDS),
        table=",\n".join(_row(key, conv, ranking) for key, conv, ranking in rows),
        compared="\n".join(f"    if (a->{f} != b->{f}) return a->{f} < b->{f} ? -1 : 1;" for f in FIELDS),
    )  # fmt: skip


def _key(conv: Conv) -> tuple[int, ...]:
    return (*conv.sizes, *(values.index(getattr(conv, field)) for field, values in CHOICES.items()))


def _row(key: tuple[int, ...], conv: Conv, ranking: Selection) -> str:
    best = ranking.candidates[0]
    numbers = [enum_value(candidate.algorithm, ranking.library, conv.direction) for candidate in ranking.candidates]
    others = [number for number in dict.fromkeys(numbers) if number != numbers[0]]
    fallback = others[0] if others else -1
    values = ", ".join(map(str, key))
    note = _plain(f"{conv} {conv.direction}: {'/'.join(filter(None, (best.algorithm, best.solver)))}")
    return (
        f"    /* {note} */\n    {{{{{values}}}, {numbers[0]}, {fallback}, {best.time_us:.6e}f,"
        f" UINT64_C({int(best.workspace_bytes)})}}"
    )


def _identifier(text: str) -> str:
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower() or "gpu"


def _plain(text: str) -> str:
    """Text that cannot end a comment."""
    return re.sub(r"[^\x20-\x7e]", "?", text).replace("*/", "* /")


def miopen_user_db(picks: Picks) -> str:
    """MIOpen's user find-db (version 2): every solver of a problem with its predicted time, the fastest first.

    MIOpen's immediate mode reads it as if its own Find had measured. It looks in ``~/.config/miopen`` (or
    ``MIOPEN_USER_DB_PATH``) for a file named after GPU, backend and its own version, such as
    ``gfx90a68.HIP.….ufdb.txt``: give the file the name of the one that MIOpen made there. Workspaces are estimates.
    Raises `InputError` for another library, or where no solvers are chosen.
    """
    library = picks.selections[0].library
    if library != "miopen":
        raise InputError(f"these picks are {library}'s; a MIOpen user find-db needs a bundle fitted on MIOpen's data")
    if picks.candidate != "solver":
        raise InputError(
            "the bundle chooses among algorithms, a find-db names solvers; fit one with"
            " `seer train DATA --candidate solver`"
        )
    lines = {
        find_db_key(conv): ";".join(_entry(candidate, conv.direction) for candidate in ranking.candidates)
        for conv, ranking in _convs(picks)
    }
    return "".join(f"{key}={entries}\n" for key, entries in lines.items())


def find_db_key(conv: Conv) -> str:
    """The key of a problem: what `surrogate.formats.miopen.parse_key` reads.

    The operation's own input stands first: for the backward directions that is the forward output.
    """
    letters = {name: letter for letter, name in KEY_DIRECTIONS.items()}
    types = {name: text for text, name in KEY_DTYPES.items()}
    near, far = (conv.c, conv.h, conv.w), (conv.k, conv.out_h, conv.out_w)
    first, last = (near, far) if conv.direction == "fwd" else (far, near)
    parts = [
        *first, f"{conv.r}x{conv.s}", *last, conv.n, f"{conv.pad_h}x{conv.pad_w}",
        f"{conv.stride_h}x{conv.stride_w}", f"{conv.dilation_h}x{conv.dilation_w}", 0, conv.layout,
        types[conv.dtype], letters[conv.direction],
    ]  # fmt: skip
    return "-".join(map(str, parts)) + (f"_g{conv.groups}" if conv.groups > 1 else "")


def _entry(ranked: Ranked, direction: str) -> str:
    algorithm_name = f"miopenConvolution{IN_FIND_DB[direction]}Algo{ranked.algorithm}"
    return f"{ranked.solver}:{ranked.time_us / 1000:.9g},{int(ranked.workspace_bytes)},{algorithm_name}"


FORMS = {"json": json_table, "c-header": c_header, "miopen-user-db": miopen_user_db}
"""Form → what writes it."""
