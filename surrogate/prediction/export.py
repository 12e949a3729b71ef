"""Write the picks of a list of problems as tables for other programs: JSON, a C99 header, MIOpen's user find-db.

`surrogate.prediction.export_function` writes functions that also answer for problems outside the list.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

from surrogate.dataset.problem_list import ListedProblem
from surrogate.features import SETTINGS, SIZE_COLUMNS, Conv, InputError, Value, algorithm, read_toml
from surrogate.features.families import DEFAULT_FAMILY, AnyProblem, DescribedFamily, DescribedProblem, Family, family_of
from surrogate.formats.miopen import DIRECTIONS as KEY_DIRECTIONS, DTYPES as KEY_DTYPES
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.results import (
    ROOFLINE,
    SOURCES,
    Limits,
    NoteCounts,
    Ranked,
    Selection,
    by_reason,
    configuration_of,
    releases,
)
from surrogate.report.tables import template

KIND = "seer-picks"
SCHEMA = 1
"""Version of the JSON layout. History: 1, the first."""
FIELDS = (*SIZE_COLUMNS, *SETTINGS)
"""Fields of a C key. The header's enumerators number the values of a setting in the order of `SETTINGS`."""
IN_FIND_DB = {"fwd": "Fwd", "bwd_data": "BwdData", "bwd_filter": "BwdWeights"}
"""Direction → its name inside algorithm names in MIOpen's find-db."""
MAX_CAVEATS = 10
"""Maximum number of caveats of a file."""
EMPTY = "no problem has a pick within the limits; the table would be empty"
MAX_CONFIGURATIONS = 10
"""Maximum number of fallback configurations of a described kernel in JSON. There may be thousands."""
C_TYPES = {bool: "int64_t ", int: "int64_t ", float: "double ", str: "const char *"}
"""Type of a parameter's values → its type in C."""
C_WORDS = frozenset(read_toml(__file__, "c_words.toml")["words"])
"""Reserved words of C and C++. A field with such a name gets a trailing underscore."""


@dataclass(frozen=True)
class Picks:
    """One selection for each distinct problem, with the facts about the bundle that made them.

    ``model``, ``data``, ``gpus`` and ``bundle`` are the bundle's model, the name and GPUs of its training data, and its
    own name. ``held_out`` are the figures of its choices on held-out shapes
    (`surrogate.evaluation.coverage.choice_figures`). ``refused``: problem → why the predictor refused it.
    """

    selections: tuple[Selection, ...]
    limits: Limits
    model: str
    data: str
    candidate: str = "algorithm"
    bundle: str = ""
    gpus: tuple[str, ...] = ()
    held_out: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[AnyProblem, str] = field(default_factory=dict)

    @property
    def family(self) -> Family[Any]:
        """The family of the problems."""
        return family_of(self.selections[0].problem)

    @property
    def feasible(self) -> list[Selection]:
        """Selections with at least one feasible candidate."""
        return [selection for selection in self.selections if selection.estimates]

    @property
    def infeasible(self) -> list[Selection]:
        """Selections without a feasible candidate."""
        return [selection for selection in self.selections if not selection.estimates]

    @property
    def caveats(self) -> list[str]:
        """The sources of the picks, and their most frequent caveats with the number of picks."""
        sources = Counter(each.estimates[0].source for each in self.feasible)
        notes = NoteCounts()
        notes.update(note for each in self.feasible for note in each.caveats())
        listed = ", ".join(f"{SOURCES[name]} ({name}): {count}" for name, count in sources.items())
        return [f"Sources of the times: {listed}", *notes.lines("pick", MAX_CAVEATS)]

    @property
    def left_out(self) -> dict[AnyProblem, str]:
        """Problem without a pick → reason."""
        reasons = {each.problem: "; ".join(by_reason(each.excluded)) or "nothing runs it" for each in self.infeasible}
        return {**self.refused, **reasons}


def sizes_and_settings(problem: AnyProblem) -> dict[str, Any]:
    """Return size or setting → value, in the order of the family's names."""
    family = family_of(problem)
    names = (*family.size_names, *family.setting_names)
    return dict(zip(names, (*family.sizes_of(problem), *family.setting_of(problem)), strict=True))


def picks_for(
    predictor: Predictor,
    problems: Sequence[AnyProblem],
    limits: Limits | None = None,
    *,
    library_version: str | None = None,
    name: str = "",
) -> Picks:
    """Rank the candidates of every distinct problem once, as `Predictor.select` does.

    Parameters
    ----------
    predictor
        The predictor that ranks.
    problems
        Problems of one family.
    limits
        Limits on workspace and determinism.
    library_version
        Version of the library, as in `Predictor.select`.
    name
        Name of the predictor's bundle. Shipped bundles have their own names.

    Returns
    -------
    Picks
        A problem that the predictor refuses is in ``refused``; the other problems are still answered.

    Raises
    ------
    InputError
        If there is no problem, if problems have several families, or if the predictor refuses every problem.
    """
    if not problems:
        raise InputError("no problem was given; give at least one")
    distinct = tuple(dict.fromkeys(problems))
    family, *others = dict.fromkeys(family_of(problem).name for problem in distinct)
    if others:
        raise InputError(f"problems have several families ({family}, {', '.join(others)}); export one family at a time")
    limits = limits or Limits()
    selections, refused = _selections(predictor, distinct, limits, library_version)
    if not selections:
        raise InputError(next(iter(refused.values())))
    models = predictor.family_models((selection.problem for selection in selections), library_version)
    origins = dict(predictor.bundle.origin_of(model) or (name, predictor.bundle) for model in models)
    cards = [bundle.card.get("data", {"name": "unnamed data"}) for bundle in origins.values()]
    figures = [bundle.card.get("held_out", {}).get(family, {}).get("choice", {}) for bundle in origins.values()]
    return Picks(
        selections,
        limits,
        ", ".join(dict.fromkeys(model.fitted.name or ROOFLINE for model in models)),
        data=", ".join(card.get("name", "unnamed data") for card in cards),
        candidate=predictor.bundle.candidate,
        bundle=", ".join(origins),
        gpus=tuple(dict.fromkeys(gpu for card in cards for gpu in card.get("gpus", ()))),
        held_out=figures[0] if len(figures) == 1 else {},
        refused=refused,
    )


def _selections(
    predictor: Predictor, problems: Sequence[AnyProblem], limits: Limits, library_version: str | None
) -> tuple[tuple[Selection, ...], dict[AnyProblem, str]]:
    """Return the selections of the problems, and problem → reason for those that the predictor refuses."""
    allowed: dict[str, Any] = {"workspace_limit": limits.workspace_bytes, "deterministic": limits.deterministic}
    allowed |= {"library_version": library_version}
    try:
        return tuple(predictor.select_many(problems, **allowed)), {}
    except InputError:
        selections: list[Selection] = []
        refused: dict[AnyProblem, str] = {}
        for problem in problems:
            try:
                selections.append(predictor.select(problem, **allowed))
            except InputError as error:
                refused[problem] = str(error)
        return tuple(selections), refused


def of_one_family(listed: Sequence[ListedProblem]) -> tuple[list[AnyProblem], dict[str, str]]:
    """Return the problems of one family of a list; and position and text of each other one → why it is left out.

    The family is convolutions if the list has any, else the family of the first problem.
    """
    names = [family_of(each.problem).name for each in listed if each.problem is not None]
    family = DEFAULT_FAMILY if DEFAULT_FAMILY in names else next(iter(names), DEFAULT_FAMILY)
    kept: list[AnyProblem] = []
    left_out: dict[str, str] = {}
    for each in listed:
        if each.problem is None:
            left_out[f"{each.where}: {each.operator}"] = "the operator is not registered"
        elif family_of(each.problem).name == family:
            kept.append(each.problem)
        else:
            reason = f"its family is not {family}; a file holds one family, list it in another file"
            left_out[f"{each.where}: {each.problem}"] = reason
    return kept, left_out


def export(picks: Picks, form: str) -> str:
    """Return the text of the picks in the form ``json``, ``c-header`` or ``miopen-user-db``.

    Raises `InputError` if the form cannot hold the picks.
    """
    return FORMS[form](picks)


def _convs(picks: Picks) -> list[tuple[Conv, Selection]]:
    """Return the convolutions with a pick. Raises `InputError` if there is no pick, or for another operator."""
    others = [s.problem.kind for s in picks.selections if not isinstance(s.problem, Conv)]
    if others:
        raise InputError(f"a problem is a {others[0]}; this form holds only convolutions, use json")
    if not picks.feasible:
        raise InputError(EMPTY)
    return [(selection.problem, selection) for selection in picks.feasible if isinstance(selection.problem, Conv)]


def enum_value(name: str, library: str, direction: str) -> int:
    """Return the library's enumeration value of an algorithm. Raises `InputError` if it has none."""
    value = algorithm(name, library, direction).enum
    if value < 0:
        raise InputError(f"{library}'s {direction} algorithm {name} has no enumeration value; it cannot be exported")
    return value


def json_table(picks: Picks) -> str:
    """Return the picks as JSON text.

    ``{kind: "seer-picks", schema, gpu, library, library_version, workspace_limit_bytes, deterministic, model, data,
    notes, picks: [{problem, <sizes and settings>, algorithm, enum, solver, time_us, lower_us, upper_us,
    workspace_bytes, source, in_domain, fallbacks: [{algorithm, enum, solver, time_us, workspace_bytes}]}], infeasible:
    [{problem, <settings>, excluded: [{algorithm, reason}]}]}``. ``enum`` is the library's enumeration value, or null.
    ``solver`` is present if solvers are chosen, and a candidate's ``library`` if several libraries compete. Fallbacks
    are in the order of their times. For a described kernel a candidate has ``parameters``, at most
    `MAX_CONFIGURATIONS` are fallbacks, and ``excluded`` is ``[{configurations, reason}]`` with the count per reason.
    """
    first = picks.selections[0]
    content = {
        "kind": KIND,
        "schema": SCHEMA,
        **{name: getattr(first, name) for name in ("gpu", "library", "library_version")},
        "workspace_limit_bytes": picks.limits.workspace_bytes,
        "deterministic": picks.limits.deterministic,
        "model": picks.model,
        "data": picks.data,
        "notes": picks.caveats,
        "picks": list(map(_pick_record, picks.feasible)),
        "infeasible": list(map(_infeasible_record, picks.infeasible)),
    }
    return json.dumps(content, indent=1) + "\n"


def _pick_record(selection: Selection) -> dict[str, object]:
    problem = selection.problem
    count = 1 + MAX_CONFIGURATIONS if isinstance(problem, DescribedProblem) else None
    best, *others = (Ranked.of(estimate, nan, problem) for estimate in selection.estimates[:count])
    several_libraries = ", " in selection.library
    return {
        "problem": str(problem),
        **problem.to_dict(),
        **_candidate_record(best, problem, several_libraries),
        "lower_us": best.lower_us,
        "upper_us": best.upper_us,
        "source": best.source,
        "in_domain": selection.in_domain,
        "fallbacks": [_candidate_record(other, problem, several_libraries) for other in others],
    }


def _candidate_record(ranked: Ranked, problem: AnyProblem, several_libraries: bool) -> dict[str, object]:
    names: dict[str, object] = {"library": ranked.library} if several_libraries else {}
    if isinstance(problem, DescribedProblem):
        names["parameters"] = ranked.parameters
    elif ranked.solver:
        names["solver"] = ranked.solver
    return {
        "algorithm": ranked.algorithm,
        "enum": _enum_or_none(ranked, problem),
        **names,
        "time_us": ranked.time_us,
        "workspace_bytes": ranked.workspace_bytes,
    }


def _enum_or_none(ranked: Ranked, problem: AnyProblem) -> int | None:
    try:
        return enum_value(ranked.algorithm, ranked.library, getattr(problem, "direction", ""))
    except InputError:
        return None


def _infeasible_record(selection: Selection) -> dict[str, object]:
    family = family_of(selection.problem)
    settings = dict(zip(family.setting_names, family.setting_of(selection.problem), strict=True))
    excluded: list[dict[str, Any]] = [candidate._asdict() for candidate in selection.excluded]
    if isinstance(family, DescribedFamily):
        counts = by_reason(selection.excluded).items()
        excluded = [{"configurations": count, "reason": reason} for reason, count in counts]
    return {"problem": str(selection.problem), **settings, "excluded": excluded}


def c_header(picks: Picks) -> str:
    """Return a C99 header: a table of picks and its lookup by binary search.

    Each family has its own types, named after it. Convolutions have the same types in every header, so a program can
    include several headers. Raises `InputError` if no problem has a pick, or if a convolution's algorithm has no
    enumeration value.
    """
    family = picks.family
    parameters = family.description.parameters if isinstance(family, DescribedFamily) else {}
    is_conv = family.name == Conv.kind
    if is_conv:
        rows = [(_conv_key(conv), _conv_values(conv, selection), selection) for conv, selection in _convs(picks)]
    else:
        rows = [
            ((*sizes_and_settings(each.problem).values(),), _names_and_parameters(each, parameters), each)
            for each in picks.feasible
        ]
    if not rows:
        raise InputError(EMPTY)
    rows.sort(key=lambda row: row[0])
    solvers = [_c_value(selection.estimates[0].candidate.solver) for _, _, selection in rows] if is_conv else []
    family_suffix = "" if is_conv else f"_{_identifier(family.name)}"
    # Python sorts texts in the order of their UTF-8 bytes, as strcmp does.
    return (
        template("picks.h.j2", "surrogate.prediction").render(
            prefix=f"seer{family_suffix}",
            name=f"seer_{_identifier(picks.selections[0].gpu)}{family_suffix}",
            family="" if is_conv else family.name,
            picks=picks,
            comment=_comment_text,
            place=", ".join(filter(None, (picks.selections[0].gpu, releases(picks.selections[0])))),
            choices=SETTINGS if is_conv else {},
            numbers=FIELDS if is_conv else [*map(_c_name, family.size_names)],
            texts=() if is_conv else [*map(_c_name, family.setting_names)],
            parameters={_c_name(name): _c_type(values) for name, values in parameters.items()},
            rows=[_c_row(*row) for row in rows],
            solvers=solvers if any(solver != '""' for solver in solvers) else [],
        )
        + "\n"
    )


def _conv_values(conv: Conv, selection: Selection) -> tuple[int, int]:
    """Return the enumeration values of the pick and of the next best algorithm (-1 if there is none)."""
    numbers = [enum_value(candidate.algorithm, selection.library, conv.direction) for candidate in selection.candidates]
    others = [number for number in numbers if number != numbers[0]]
    return numbers[0], others[0] if others else -1


def _names_and_parameters(selection: Selection, parameters: Mapping[str, Sequence[Value]]) -> tuple[Any, ...]:
    """Return library, algorithm and, for a described kernel, the values of its ``parameters``."""
    best = selection.estimates[0].candidate
    if not parameters:
        return best.library, "/".join(filter(None, (best.algorithm, best.solver)))
    absent = {name: type(values[0])() for name, values in parameters.items()}
    configuration = configuration_of(selection.problem, best.solver) or absent
    return best.library, best.algorithm, tuple(configuration.values())


def _conv_key(conv: Conv) -> tuple[int, ...]:
    return (*conv.sizes, *(values.index(getattr(conv, field)) for field, values in SETTINGS.items()))


def _c_row(key: tuple[Any, ...], values: tuple[Any, ...], selection: Selection) -> str:
    best = selection.estimates[0]
    note = str(selection.problem)
    if isinstance(selection.problem, Conv):
        name = "/".join(filter(None, (best.candidate.algorithm, best.candidate.solver)))
        note = f"{note} {selection.problem.direction}: {name}"
    inner = ", ".join(map(_c_value, (key, *values)))
    size = "UINT64_MAX" if best.workspace_bytes is None else f"UINT64_C({best.workspace_bytes})"
    end = f"{best.time_us:.6e}f, {size}"
    return f"    /* {_comment_text(note)} */\n    {{{inner}, {end}}}"


def _c_name(name: str) -> str:
    """Return a name that C and C++ allow."""
    return f"{name}_" if name in C_WORDS else name


def _c_type(values: Sequence[Value]) -> str:
    """Return the C type that holds all values of a parameter."""
    kinds = {type(value) for value in values}
    return C_TYPES[float if float in kinds else next(iter(kinds))]


def _c_value(value: Value | tuple[Value, ...]) -> str:
    """Return a C initialiser; a text is written as its UTF-8 bytes."""
    if isinstance(value, tuple):
        return f"{{{', '.join(map(_c_value, value))}}}"
    if not isinstance(value, str):
        return str(int(value) if isinstance(value, bool) else value)
    chars = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in value.encode())
    return f'"{"".join(chars)}"'


def _identifier(text: str) -> str:
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower() or "gpu"


def _comment_text(text: str) -> str:
    """Return a text that cannot end a C comment."""
    return re.sub(r"[^\x20-\x7e]", "?", text).replace("*/", "* /")


def miopen_user_db(picks: Picks) -> str:
    """Return MIOpen's user find-db (version 2): the solvers of each problem with predicted times, the fastest first.

    MIOpen's immediate mode reads the file as if MIOpen's Find had measured it. MIOpen looks in ``~/.config/miopen`` (or
    ``MIOPEN_USER_DB_PATH``) for a file named after GPU, backend and MIOpen's version, such as
    ``gfx90a68.HIP.….ufdb.txt``. Give the file the name of the one that MIOpen created there. Workspaces are estimates.
    Raises `InputError` for another library, or if the bundle does not choose among solvers.
    """
    library = picks.selections[0].library
    if library != "miopen":
        raise InputError(f"the picks are of {library}; a MIOpen user find-db needs a bundle fitted on MIOpen's data")
    if picks.candidate != "solver":
        raise InputError(
            "the bundle chooses among algorithms, but a find-db names solvers; train a bundle with"
            " `seer train DATA --candidate solver`"
        )
    lines = {
        find_db_key(conv): ";".join(_find_db_entry(candidate, conv.direction) for candidate in ranking.candidates)
        for conv, ranking in _convs(picks)
    }
    return "".join(f"{key}={entries}\n" for key, entries in lines.items())


def find_db_key(conv: Conv) -> str:
    """Return the find-db key of a problem, which `surrogate.formats.miopen.parse_key` reads.

    The operation's input comes first. For the backward directions it is the forward output.
    """
    letters = {name: letter for letter, name in KEY_DIRECTIONS.items()}
    types = {name: text for text, name in KEY_DTYPES.items()}
    input_dims, output_dims = (conv.c, conv.h, conv.w), (conv.k, conv.out_h, conv.out_w)
    first, last = (input_dims, output_dims) if conv.direction == "fwd" else (output_dims, input_dims)
    steps = (conv.pad_h, conv.pad_w), (conv.stride_h, conv.stride_w), (conv.dilation_h, conv.dilation_w)
    filters, *windows = (f"{height}x{width}" for height, width in ((conv.r, conv.s), *steps))
    names = conv.layout, types[conv.dtype], letters[conv.direction]
    parts = [*first, filters, *last, conv.n, *windows, 0, *names]
    return "-".join(map(str, parts)) + (f"_g{conv.groups}" if conv.groups > 1 else "")


def _find_db_entry(ranked: Ranked, direction: str) -> str:
    algorithm_name = f"miopenConvolution{IN_FIND_DB[direction]}Algo{ranked.algorithm}"
    return f"{ranked.solver}:{ranked.time_us / 1000:.9g},{ranked.workspace_bytes or 0},{algorithm_name}"


FORMS = {"json": json_table, "c-header": c_header, "miopen-user-db": miopen_user_db}
"""Form → function that writes it."""
