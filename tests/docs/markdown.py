"""Fenced blocks of a Markdown page, the commands in them, and whether an output shown is the output had."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
TOLERANCE = 0.02
REST = "…"
"""A line of its own in an output: lines that the page leaves out."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, the words after it, its text, and the line of the page where the text starts."""

    language: str
    note: str
    text: str
    line: int

    @property
    def differs(self) -> bool:
        """True for an output whose numbers are another machine's."""
        return "differ" in self.note


@dataclass(frozen=True, slots=True)
class Step:
    """A ``sh`` or ``python`` block and the ``text`` block after it, None where the page shows no output."""

    block: Block
    shown: Block | None


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    start, head, text = 0, "", list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not start and line.startswith("```"):
            start, head, text = number + 1, line[3:], []
        elif start and line == "```":
            language, _, note = head.partition(" ")
            found.append(Block(language, note, "\n".join(text), start))
            start = 0
        elif start:
            text.append(line)
    assert not start, f"{page}, line {start - 1}: the block has no end"
    return found


def steps(page: Path) -> list[Step]:
    """What a reader would run, with the outputs shown."""
    found = blocks(page)
    pairs = zip(found, [*found[1:], None], strict=True)
    return [
        Step(one, after if after is not None and after.language == "text" else None)
        for one, after in pairs
        if one.language in ("sh", "python")
    ]


def commands(text: str) -> list[list[str]]:
    """The lines of a ``sh`` block as words; a comment is dropped, a line that ends in ``\\`` goes on."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def without_settings(words: list[str]) -> list[str]:
    """The words of a command without the ``NAME=VALUE`` before it."""
    return without_settings(words[1:]) if "=" in words[0] and len(words) > 1 else words


def missing_label(shown: str, had: str) -> str:
    """The first shown line without a number (a heading) that the output lacks, "" where there is none."""
    layouts = {_layout(line) for line in had.splitlines()}
    headings = (line for line in shown.splitlines() if line != REST and not NUMBER.search(line))
    return next((line for line in headings if _layout(line) not in layouts), "")


def unlike(shown: str, had: str) -> str:
    """The first shown line that the output lacks, "" where there is none.

    Layout must be the same up to the width of blanks, numbers within 2 %; a line ``…`` stands for any lines.
    """
    left, skipping = [line.rstrip() for line in had.splitlines()], False
    for line in (line.rstrip() for line in shown.splitlines()):
        if line == REST:
            skipping = True
            continue
        while skipping and left and not _same(line, left[0]):
            left.pop(0)
        if not left or not _same(line, left.pop(0)):
            return line or "(an empty line)"
        skipping = False
    return "" if skipping or not left else f"(the end; there is more: {left[0]!r})"


def _same(shown: str, had: str) -> bool:
    if _layout(shown) != _layout(had):
        return False
    pairs = zip(_numbers(shown), _numbers(had), strict=True)
    return all(abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) + 0.005 for a, b in pairs)


def _layout(line: str) -> str:
    return re.sub(r"([ ─-])\1+", r"\1", NUMBER.sub("0", line)).strip()


def _numbers(line: str) -> list[float]:
    return [float(found.replace(",", "")) for found in NUMBER.findall(line)]
