"""Tables of problems: columns in, columns out, in chunks of bounded memory, every distinct problem worked out once."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surrogate.features.conv import MAX_SIZE, Conv
from surrogate.features.errors import InputError, nearest
from surrogate.features.problem import DIRECTIONS, DTYPES, LAYOUTS, MATHS, SIZE_COLUMNS, ConvColumns
from surrogate.prediction.prediction import Predictions
from surrogate.prediction.setting import Setting
from surrogate.prediction.site import Site
from surrogate.prediction.sites import Sites

CHUNK_ROWS = 65_536
FOLLOWS = {"w": "h", "s": "r", "pad_w": "pad_h", "stride_w": "stride_h", "dilation_w": "dilation_h"}
DEFAULTS = {"pad_h": 0, "stride_h": 1, "dilation_h": 1, "groups": 1}
"""A column that is not there: as the height's, or this constant; as `Conv` has it."""
CHOICES = {"direction": DIRECTIONS, "dtype": tuple(DTYPES), "math": MATHS, "layout": LAYOUTS}
SETTINGS = ("gpu", "library", "library_version", *CHOICES)
Column = tuple[Sequence[str], np.ndarray | None]
"""Distinct texts, and each row's place among them (None: the first, everywhere)."""


def predict_table(
    sites: Sites, table: Any, defaults: Mapping[str, str | None], algorithm: str | None = None
) -> Predictions:
    """Predictions for every row; ``defaults`` stand for the columns ``gpu``, ``library`` and ``library_version``.

    ``algorithm`` overrides the column of that name; without either the best feasible one is taken. Raises `InputError`
    naming the first row that is wrong.
    """
    columns = _columns(table)
    sizes = _sizes(columns)
    texts = {name: _text(columns, name, defaults.get(name)) for name in SETTINGS}
    for name, known in CHOICES.items():
        wrong = [value for value in texts[name][0] if value not in known]
        if wrong:
            raise InputError(
                f"column {name} holds {wrong[0]!r}; known: {', '.join(known)}{nearest(wrong[0], known)}"
            )
    named = _named(columns, algorithm, solvers=sites.bundle.candidate == "solver")
    out = _empty(len(sizes))
    for start in range(0, len(sizes), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        _predict_chunk(
            sites, sizes[part], {n: _part(c, part) for n, c in texts.items()}, _part(named, part), part, out
        )
    return Predictions(**out)


def _predict_chunk(
    sites: Sites,
    sizes: np.ndarray,
    texts: Mapping[str, Column],
    named: Column | None,
    part: slice,
    out: Mapping[str, np.ndarray],
) -> None:
    code = np.zeros(len(sizes), dtype=np.int64)
    for values, place in texts.values():
        if place is not None:
            code = code * len(values) + place
    for one in np.unique(code):
        rows = np.flatnonzero(code == one)
        first = int(rows[0])
        given = {n: values[0 if place is None else int(place[first])] for n, (values, place) in texts.items()}
        site = _site(sites, given)
        new = np.append(True, (sizes[rows[1:]] != sizes[rows[:-1]]).any(axis=1))
        problem = np.cumsum(new) - 1
        distinct = sizes[rows[new]]
        found = (
            _best(site, distinct, problem)
            if named is None
            else _asked(site, distinct, problem, named[0], named[1], rows)
        )
        for name, values in found.items():
            out[name][part][rows] = values


def _site(sites: Sites, given: Mapping[str, str]) -> Site:
    if not given["gpu"]:
        raise InputError("the table has no column `gpu`; add it, or say which one, as in load(path, gpu=…)")
    place = sites.place(given["gpu"])
    library = sites.library(place.name, given["library"] or None)
    version = given["library_version"] or sites.newest_version(place.name, library)
    return sites.site(
        Setting(
            place.name, library, version, given["direction"], given["dtype"], given["math"], given["layout"]
        ),
        place,
    )


def _asked(
    site: Site,
    sizes: np.ndarray,
    problem: np.ndarray,
    names: Sequence[str],
    place: np.ndarray | None,
    rows: np.ndarray,
) -> dict[str, np.ndarray]:
    """The algorithm that each row names."""
    used = range(len(names)) if place is None else np.unique(place[rows]).tolist()
    lookup = np.full(len(names), -1)
    lookup[used] = [site.place_of(names[number]) for number in used]
    index = np.full(len(rows), lookup[0]) if place is None else lookup[place[rows]]
    allowed = site.verdicts.allowed(_conv_columns(site.setting, sizes))
    return _kept(site, site.many(sizes, problem, index), index, allowed[problem, index])


def _best(site: Site, sizes: np.ndarray, problem: np.ndarray) -> dict[str, np.ndarray]:
    """The fastest algorithm that the library accepts, per problem, then spread over the rows."""
    allowed = site.verdicts.allowed(_conv_columns(site.setting, sizes))[:, : site.measured]
    at, index = np.nonzero(allowed)
    columns = site.many(sizes, at, index)
    grid = np.full(allowed.shape, np.inf)
    grid[at, index] = columns["predicted_us"]
    best = grid.argmin(axis=1)
    row = np.full(allowed.shape, -1)
    row[at, index] = np.arange(len(at))
    chosen = row[np.arange(len(sizes)), best]
    feasible = chosen >= 0
    found = (
        _kept(site, {n: v[chosen] for n, v in columns.items() if len(v) == len(at)}, best, feasible)
        if len(at)
        else {}
    )
    blank = _empty(len(sizes))
    for name, values in found.items():
        blank[name][feasible] = values[feasible]
    return {name: values[problem] for name, values in blank.items()}


def _kept(
    site: Site, columns: Mapping[str, np.ndarray], index: np.ndarray, supported: np.ndarray
) -> dict[str, np.ndarray]:
    names = np.array([candidate.name for candidate in site.candidates], dtype=object)
    wanted = ("predicted_us", "lower_us", "upper_us", "in_domain", "workspace_bytes")
    return {**{name: columns[name] for name in wanted}, "algorithm": names[index], "supported": supported}


def _empty(length: int) -> dict[str, np.ndarray]:
    return {
        "algorithm": np.full(length, "", dtype=object),
        **{name: np.full(length, np.nan) for name in ("predicted_us", "lower_us", "upper_us")},
        "in_domain": np.zeros(length, dtype=bool),
        "supported": np.zeros(length, dtype=bool),
        "workspace_bytes": np.full(length, np.nan),
    }


def _conv_columns(setting: Setting, sizes: np.ndarray) -> ConvColumns:
    s = setting
    return ConvColumns.of(list(sizes.T), dtype=s.dtype, math=s.math, layout=s.layout, direction=s.direction)


def _columns(table: Any) -> dict[str, Any]:
    """Name → values of a DataFrame, a mapping, or a structured array."""
    if isinstance(table, np.ndarray) and table.dtype.names:
        return {name: table[name] for name in table.dtype.names}
    if isinstance(table, Mapping):
        return {str(name): table[name] for name in table}
    names = getattr(table, "columns", None)
    if names is not None:
        return {str(name): table[name] for name in names}
    raise InputError(
        f"a {type(table).__name__} is no problem; give a Conv, its text, or a table:"
        " a DataFrame, a mapping of columns or a structured array"
    )


def _sizes(columns: Mapping[str, Any]) -> np.ndarray:
    """(rows, 14) int64, missing columns filled as `Conv` fills them."""
    missing = [name for name in ("n", "c", "h", "k", "r") if name not in columns]
    if missing:
        raise InputError(f"the table lacks column {', '.join(missing)}; n, c, h, k and r must be there")
    rows = len(columns["n"])
    out = np.empty((rows, len(SIZE_COLUMNS)), dtype=np.int64)
    for place, name in enumerate(SIZE_COLUMNS):
        source = name if name in columns else FOLLOWS.get(name, name)
        values = np.asarray(columns[source]) if source in columns else np.full(rows, DEFAULTS.get(source, 0))
        least = 0 if name.startswith("pad") else 1
        _check(values, name, least)
        out[:, place] = values
    return out


def _check(values: np.ndarray, name: str, least: int) -> None:
    if values.dtype.kind not in "iuf":
        raise InputError(f"column {name} holds {values.dtype.name}; whole numbers are needed")
    with np.errstate(invalid="ignore"):
        wrong = ~((values >= least) & (values <= MAX_SIZE))
        if values.dtype.kind == "f":
            wrong |= values != np.floor(values)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"row {row}: {name} is {values[row]}; a whole number between {least} and {MAX_SIZE} is needed"
        )


def _text(columns: Mapping[str, Any], name: str, default: str | None) -> Column:
    """Distinct values of a text column, or its default."""
    values = np.asarray(columns[name], dtype=object) if name in columns else np.empty(0, dtype=object)
    if not len(values):
        return [default or _conv_default(name)], None
    if (values == values[0]).all():
        return [str(values[0])], None
    listed = values.tolist()
    number = {value: place for place, value in enumerate(dict.fromkeys(listed))}
    place = np.fromiter(map(number.__getitem__, listed), dtype=np.int64, count=len(listed))
    return [str(value) for value in number], place


def _conv_default(name: str) -> str:
    return str(Conv.__dataclass_fields__[name].default) if name in CHOICES else ""


def _named(columns: Mapping[str, Any], algorithm: str | None, *, solvers: bool) -> Column | None:
    """Which algorithm (or solver) each row asks for; None: the best."""
    if algorithm is not None:
        return [algorithm], None
    name = "solver" if solvers else "algorithm"
    return _text(columns, name, None) if name in columns else None


def _part(column: Any, part: slice) -> Any:
    if column is None or column[1] is None:
        return column
    return column[0], column[1][part]
