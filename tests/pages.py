"""The generated pages and parts of pages: ``python -m tests pages`` writes them, and a test compares them.

A part is between ``<!-- NAME -->`` and ``<!-- end of NAME -->`` on its page. `experiments.pages` has the whole pages.
"""

import json
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import chdir
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from click.testing import CliRunner

from experiments.pages import NAMES, how_good, markdown as table, page
from surrogate.cli import seer
from surrogate.features.families import FAMILIES, OPERATORS, Family
from surrogate.formats import FORMATS
from surrogate.models.registry import DECLARED
from surrogate.trace.whatif import WHAT_IF_RULES

ROOT = Path(__file__).resolve().parents[1]


class Part(NamedTuple):
    """One generated part: its page, its name there, and its function."""

    page: str
    name: str
    write: Callable[[], str]


def families() -> str:
    """Return a row for each family: its operators, a problem as text, its sizes and its settings."""
    families = [each for each in FAMILIES.values() if FAMILIES.is_built_in(each.name)]  # tests register other kernels
    rows = [(f"`{f.name}`", ", ".join(f.kinds), f"`{_example(f)}`", _sizes(f), _settings(f)) for f in families]
    return table(("family", "operators", "as text", "sizes (short name; default)", "settings"), rows)


def _example(family: Family) -> str:
    """Return the known problem of the family's first operator, or a convolution's text."""
    first = OPERATORS.get(next(iter(family.kinds)))
    return first.KNOWN_ANSWER.problem if first and first.KNOWN_ANSWER else "n32c256h14w14k256r3s3p1u1"


def _sizes(family: Family) -> str:
    first = next(iter(family.kinds.values()))
    short = {name: letter for letter, name in getattr(first, "LETTERS", {}).items()}
    sizes = []
    for size in family.sizes:
        notes = [short[size.name]] if size.name in short else []
        notes += [] if size.default is None else [f"as {size.default}" if size.follows else str(size.default)]
        sizes.append(f"{size.name} ({'; '.join(notes)})" if notes else size.name)
    return ", ".join(sizes)


def _settings(family: Family) -> str:
    return ", ".join(name for name in family.setting_names if name != "operator")


def models() -> str:
    """Return a row for each model from its declaration."""
    rows = []
    for model in DECLARED.values():
        answers = ("times and picks" if model.predicts_time else "picks") + " (if it is named)" * model.on_request
        rows.append((f"`{model.name}`", model.help, answers, "yes" if model.storable else "no"))
    return table(("model", "what it is", "predicts", "in bundles"), rows)


def what_ifs() -> str:
    """Return a row for each what-if: its help and its interval."""
    rows = []
    for name, rule in WHAT_IF_RULES.items():
        error = rule.evidence and rule.evidence.error
        interval = f"±{100 * error:g} % of the time touched" if error else rule.evidence and rule.evidence.interval
        rows.append((f"`{name}=N`" if rule.value else f"`{name}`", rule.help, str(interval)))
    return table(("what-if", "what it does", "interval"), rows)


def formats() -> str:
    """Return a row for each foreign format."""
    return table(("format", "what its files hold"), [(f"`{each.name}`", each.summary) for each in FORMATS.values()])


TRAINING = "surrogate/network/TRAINING.md"
FILE_BLOCK = re.compile(r"^```\w+ file=(\S+)\n(.+?)^```", re.MULTILINE | re.DOTALL)
SHELL_BLOCK = re.compile(r"^```sh\n(.+?)^```", re.MULTILINE | re.DOTALL)


def write_files(page: str, folder: Path) -> None:
    """Write the files that the page shows (blocks with ``file=PATH``) below ``folder``."""
    for path, content in FILE_BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")


def fine_tuning() -> str:
    """Return a row for each command of the page on training, with its step, memory and cost."""
    text = (ROOT / TRAINING).read_text(encoding="utf-8")
    commands = [line for block in SHELL_BLOCK.findall(text) for line in block.splitlines()]
    with TemporaryDirectory() as name, chdir(name):
        write_files(TRAINING, Path(name))
        answers = [CliRunner().invoke(seer, [*shlex.split(line)[1:], "--json"]) for line in commands]
    times = [json.loads(answer.stdout) for answer in answers]
    options = [line.split(" --")[1:] for line in commands]
    shared = set.intersection(*map(set, options))
    rows = []
    for given, time in zip(options, times, strict=True):
        total, lower, upper = (f"{time[end] / 1e3:,.0f}" for end in ("total_us", "lower_us", "upper_us"))
        memory, cost = f"{time['memory_bytes'] / 2**30:.0f}", f"{time['cost']['usd_per_epoch']:.2f}"
        figures = (f"{total} ({lower}–{upper})", f"{time['tokens_per_s']:,.0f}", f"{time['mfu']:.0%}", memory, cost)
        shown = " --".join(each for each in given if each not in shared)
        rows.append((f"`--{shown}`", *figures, "yes" if time["fits"] else "no"))
    return table(("options", "step, ms (90 %)", "tokens/s of all", "MFU", "GiB per GPU", "epoch, USD", "fits"), rows)


PARTS = (
    *[Part("README.md", "how good", how_good)]
    * ("<!-- how good -->" in (ROOT / "README.md").read_text(encoding="utf-8")),
    Part("surrogate/models/README.md", "models", models),
    Part("surrogate/trace/whatif/README.md", "what-ifs", what_ifs),
    Part("surrogate/formats/README.md", "formats", formats),
    Part("features/families/README.md", "families", families),
    Part(TRAINING, "fine-tuning", fine_tuning),
)


PAGES: dict[str, Callable[[], str]] = {f"experiments/{name}.md": partial(page, name) for name in NAMES}
"""Whole pages, and the functions that return their texts."""


def page_with(part: Part, text: str) -> str:
    """Return ``text`` with the part as it is generated. Raises `ValueError` if its marks are missing."""
    begin, end = f"<!-- {part.name} -->\n", f"<!-- end of {part.name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{part.page}: no part between {begin.strip()} and {end}")
    return f"{before}{begin}\n{part.write()}\n\n{end}{after}"


def main() -> int:
    """Write every page and part, and print the names of the changed ones."""
    for name, text in PAGES.items():
        if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != text():
            (ROOT / name).write_text(text(), encoding="utf-8")
            print(f"{name} written")
    for part in PARTS:
        path = ROOT / part.page
        text = path.read_text(encoding="utf-8")
        new = page_with(part, text)
        if new != text:
            path.write_text(new, encoding="utf-8")
            print(f"{part.page}: {part.name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
