"""The summary a terminal or a pipe shows: at most 80 columns for usual names, no colour."""

import textwrap

from surrogate.report.choice_tables import Table, choice_table, paired_table
from surrogate.report.headline import headline, provenance
from surrogate.report.reasons import reasons
from surrogate.report.results import Results, check_results
from surrogate.report.rows import HEURISTIC, choice_rows, number
from surrogate.report.time_tables import time_tables

WIDTH = 80
NAME_WIDTH = 20
MAX_REASONS = 12


def terminal_summary(results: Results) -> str:
    """Provenance, the answer, the choice and time tables, and what was not judged; no trailing newline."""
    check_results(results)
    blocks = [_provenance(results), textwrap.fill(headline(results), WIDTH)]
    choices = choice_rows(results)
    if choices:
        blocks.append(text_table(choice_table(results)))
        if any(row["model"] == HEURISTIC or number(row, "top1") is not None for row in choices):
            blocks.append(text_table(paired_table(results)))
    blocks += [text_table(table) for table in time_tables(results)]
    blocks.append(_reasons(results))
    text = "\n\n".join(block for block in blocks if block)
    # Names come from data: what would steer a terminal is shown, not sent.
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def text_table(table: Table) -> str:
    """``table`` as aligned text: names to the left, numbers to the right, references below a blank rule."""
    grid = [list(table.columns)] + [[cell.text for cell in line.cells] for line in table.lines]
    for line in grid:
        line[0] = _shortened(line[0])
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    texts = [_aligned(line, widths) for line in grid]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    body = texts[1:]
    split = next((index for index, line in enumerate(table.lines) if line.reference), len(body))
    if 0 < split < len(body):
        body.insert(split, rule)
    title = f"{table.title} ({table.note})" if table.note else table.title
    return "\n".join([*textwrap.wrap(title, WIDTH), texts[0], rule, *body])


def _aligned(line: list[str], widths: list[int]) -> str:
    cells = [
        line[0].ljust(widths[0]),
        *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
    ]
    return "  ".join(cells).rstrip()


def _shortened(name: str) -> str:
    """A long name loses its middle: both ends tell variants of a model apart."""
    name = " ".join(name.split())
    half = (NAME_WIDTH - 1) // 2
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 1 - half]}…{name[-half:]}"


def _provenance(results: Results) -> str:
    pairs = provenance(results)
    width = max((len(name) for name, _ in pairs), default=0) + 2
    return "\n".join(
        textwrap.fill(
            f"{name.ljust(width)}{value}", WIDTH, subsequent_indent=" " * width, drop_whitespace=True
        )
        for name, value in pairs
    )


def _reasons(results: Results) -> str:
    found = reasons(results)
    lines = [
        textwrap.fill(f"{r.model}: {r.reason} ({r.where})", WIDTH, subsequent_indent="  ") for r in found
    ]
    if len(lines) > MAX_REASONS:
        lines[MAX_REASONS:] = [f"and {len(found) - MAX_REASONS:,} more"]
    return "\n".join(["Not judged", *lines]) if lines else ""
