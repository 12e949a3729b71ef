"""Picks as a C99 header without dependencies: a sorted constant table, and its lookup by binary search."""

import re

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.problem import DIRECTIONS, DTYPES, LAYOUTS, MATHS, SIZE_COLUMNS
from surrogate.prediction.export.picks import Picks, Ranking, enum_value

CHOICES = {"direction": DIRECTIONS, "dtype": tuple(DTYPES), "math": MATHS, "layout": LAYOUTS}
"""Field of the key → its values; the header's enumerators number them in this order."""
FIELDS = (*SIZE_COLUMNS, *CHOICES)


def c_header(picks: Picks) -> str:
    """The header's text. Raises `InputError` where no problem has a pick, or an algorithm has no number."""
    rows = sorted((_key(conv), conv, ranking) for conv, ranking in picks.feasible)
    if not rows:
        raise InputError("no problem has a pick within the limits; a C table cannot be empty")
    name = f"seer_{_identifier(picks.rankings[0].gpu)}"
    comment = "\n".join(f" * {_plain(line)}" for line in picks.provenance)
    guard = f"{name.upper()}_PICKS_H"
    table = ",\n".join(_row(key, conv, ranking) for key, conv, ranking in rows)
    return (
        f"/*\n{comment}\n *\n * const struct seer_pick *{name}_find(const struct seer_problem *problem);\n"
        f" * gives the pick of a problem, or NULL where the table has none.\n */\n"
        f"#ifndef {guard}\n#define {guard}\n\n#include <stddef.h>\n#include <stdint.h>\n\n{_types()}\n"
        f"static const struct seer_pick {name}_picks[] = {{\n{table}\n}};\n\n{_lookup(name)}\n#endif /* {guard} */\n"
    )


def _key(conv: Conv) -> tuple[int, ...]:
    return (*conv.sizes, *(values.index(getattr(conv, field)) for field, values in CHOICES.items()))


def _row(key: tuple[int, ...], conv: Conv, ranking: Ranking) -> str:
    best = ranking.candidates[0]
    numbers = [enum_value(one.algorithm, ranking.library, conv.direction) for one in ranking.candidates]
    others = [number for number in dict.fromkeys(numbers) if number != numbers[0]]
    fallback = others[0] if others else -1
    values = ", ".join(map(str, key))
    note = _plain(f"{conv} {conv.direction}: {'/'.join(filter(None, (best.algorithm, best.solver)))}")
    return (
        f"    /* {note} */\n    {{{{{values}}}, {numbers[0]}, {fallback}, {best.time_us:.6e}f,"
        f" UINT64_C({int(best.workspace_bytes)})}}"
    )


def _types() -> str:
    """Key, pick and enumerators: the same in every such header, so that several may be included together."""
    enums = "\n".join(
        f"enum {{ {', '.join(f'SEER_{value.upper()} = {i}' for i, value in enumerate(values))} }};"
        f" /* {field} */"
        for field, values in CHOICES.items()
    )
    fields = "\n".join(f"    int32_t {field};" for field in FIELDS)
    return f"""#ifndef SEER_PICK_TYPES
#define SEER_PICK_TYPES
{enums}

/* A convolution by its forward sizes, in elements. */
struct seer_problem {{
{fields}
}};

struct seer_pick {{
    struct seer_problem problem;
    int32_t algorithm;        /* the library's own enumeration value for the problem's direction */
    int32_t fallback;         /* the next best, -1 where there is none */
    float time_us;            /* predicted */
    uint64_t workspace_bytes; /* estimated; ask the library for what it needs */
}};
#endif /* SEER_PICK_TYPES */
"""


def _lookup(name: str) -> str:
    compared = "\n".join(f"    if (a->{f} != b->{f}) return a->{f} < b->{f} ? -1 : 1;" for f in FIELDS)
    return f"""static inline int {name}_compare(const struct seer_problem *a, const struct seer_problem *b)
{{
{compared}
    return 0;
}}

static inline const struct seer_pick *{name}_find(const struct seer_problem *problem)
{{
    size_t low = 0, high = sizeof {name}_picks / sizeof {name}_picks[0];
    while (low < high) {{
        size_t middle = low + (high - low) / 2;
        int order = {name}_compare(problem, &{name}_picks[middle].problem);
        if (order == 0) return &{name}_picks[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }}
    return NULL;
}}
"""


def _identifier(text: str) -> str:
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower() or "gpu"


def _plain(text: str) -> str:
    """Text that cannot end a comment."""
    return re.sub(r"[^\x20-\x7e]", "?", text).replace("*/", "* /")
