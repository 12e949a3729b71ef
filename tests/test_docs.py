"""Tests of the pages: commands parse, code runs or imports existing names, and links have a target."""

import ast
import contextlib
import importlib
import io
import os
import re
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from surrogate.cli import COMMANDS, seer
from surrogate.prediction.results import SOURCES
from tests.pages import write_files
from tests.test_guides import GUIDES, guide_of
from tests.test_structure import ORDER

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted(path for package in ("features", "surrogate", "experiments") for path in (ROOT / package).rglob("*.md")),
]
SET_UP = ("python3 -m pip install . && seer compare", "python3 -m pip install '.[test]' && python3 -m pytest")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
SEER_LINE = r"`seer ([^`]+)`"
SCRIPT = r"`(python -m (?:experiments|tests|surrogate)[^`]+)`"
LINK = r"\]\(([^)#]*)(?:#([^)]*))?\)"


class Block(NamedTuple):
    """One fenced block and the line of the page where its text starts."""

    language: str
    text: str
    line: int


def blocks(page: Path, language: str) -> list[Block]:
    """Return the fenced blocks of a page in one language, in order."""
    text = page.read_text(encoding="utf-8")
    assert text.count("\n```") % 2 == 0, f"{page}: a block has no end"
    found = re.finditer(r"^```(\w+)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in found if m[1] == language]


def commands(page: Path) -> list[list[str]]:
    """Return the lines of a page's ``sh`` blocks as words, without comments, leading ``NAME=VALUE`` and pipes.

    Commands of a guide are excluded, because `test_guides` runs them.
    """
    guides = [guide_of(page, name) for name, guide in GUIDES.items() if ROOT / guide.page == page]
    followed = {block.text for guide in guides if guide for block in guide.blocks}
    texts = [block.text for block in blocks(page, "sh") if block.text not in followed]
    lines = [line for text in texts for line in text.replace("\\\n", " ").splitlines()]
    words = [shlex.split(re.sub(r"^(\w+=\S+ )+", "", line), comments=True) for line in lines]
    return [list(takewhile(lambda word: word not in ("|", "&&", ">"), line)) for line in words if line]


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that the words after ``seer`` name, and the remaining words."""
    command: click.Command = seer
    while isinstance(command, click.Group) and words and not words[0].startswith(("-", "{")):
        inside = command.get_command(click.Context(command), words[0])
        assert inside is not None, f"seer has no command {words[0]!r}"
        command = inside
        words = words[1:]
    return command, words


def parse(words: list[str]) -> None:
    """Raise the error of the command's parser; also fail if a module is missing."""
    if words[0] == "seer":
        command, rest = resolve(words[1:])
        # The first context of a command fixes its help option, so it needs seer's settings.
        command.make_context("seer", list(rest), parent=click.Context(seer, **seer.context_settings))
    elif words[:2] == ["python", "-c"]:
        check_imports(words[2])
    elif words[:2] == ["python", "-m"] and (find_spec("torch") or "torch" not in words[2]):
        module = importlib.import_module(words[2])
        found = (value for value in vars(module).values() if isinstance(value, click.Command))
        scripts = [script for script in found if script.callback and script.callback.__module__ == module.__name__]
        if scripts:
            scripts[-1].make_context(words[2], list(words[3:]))


def check_imports(code: str, page_text: str = "") -> None:
    """Assert that the code's imports from the package exist, or that ``page_text`` adds their file."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("surrogate"):
            if f"{str(node.module).replace('.', '/')}.py" in page_text:
                continue
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def test_the_patterns_match_parts_of_the_pages() -> None:
    """A pattern that matches nothing would let every page pass."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    counts = {pattern: sum(len(re.findall(pattern, text)) for text in texts) for pattern in (SEER_LINE, SCRIPT, LINK)}
    assert all(count > 20 for count in counts.values()), counts
    assert sum(len(commands(page)) for page in PAGES) > 20
    assert sum(len(blocks(page, "python")) for page in PAGES) > 10


@every_page
def test_every_command_shown_parses(page: Path) -> None:
    """Commands are parsed, not run, so data and a GPU are not needed."""
    for words in commands(page):
        try:
            parse(words)
        except click.ClickException as error:
            pytest.fail(f"{' '.join(words)}: {error.format_message()}")


@every_page
def test_every_option_named_in_a_sentence_exists(page: Path) -> None:
    """A sentence names a command as `seer …` between backquotes."""
    for text in re.findall(SEER_LINE, page.read_text(encoding="utf-8")):
        command, _ = resolve(text.replace("\\|", "|").split())
        options = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
        mentioned = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))
        assert mentioned <= options | {"--help", "--version"} or isinstance(command, click.Group), f"seer {text}"


@every_page
def test_every_script_named_in_a_sentence_exists(page: Path) -> None:
    for text in re.findall(SCRIPT, page.read_text(encoding="utf-8")):
        parse(text.split())


@every_page
def test_links_have_a_target(page: Path) -> None:
    for target, heading in re.findall(LINK, page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        assert target.startswith("https://") or path.exists(), target
        assert not heading or heading in anchors(path), f"{target}#{heading}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_python_blocks_import_existing_names(page: Path) -> None:
    for block in blocks(page, "python"):
        check_imports(block.text, page.read_text(encoding="utf-8"))


@every_page
def test_no_page_has_a_path_of_this_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert os.sep + "tmp" not in text and str(ROOT) not in text


def test_readme_has_exactly_two_installation_lines() -> None:
    lines = [line.strip() for line in README.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if line in SET_UP] == list(SET_UP)
    assert not [line for line in lines if line.startswith(("pip install", "python3 -m pip")) and line not in SET_UP]


def test_the_guide_names_every_command() -> None:
    text = (ROOT / "surrogate" / "README.md").read_text(encoding="utf-8")
    assert set(COMMANDS) <= set(re.findall(r"seer ([a-z]+)", text))


def rows(page: Path, head: str) -> list[list[str]]:
    """Return the rows of the table whose header starts with ``| head |``."""
    _, found, below = page.read_text(encoding="utf-8").partition(f"\n| {head} |")
    assert found, f"{page} has no table that begins with {head!r}"
    lines = takewhile(lambda line: line.startswith("|"), below.splitlines()[2:])
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_table_of_packages_has_the_order_of_imports() -> None:
    assert [name.strip("`") for name, _ in rows(ROOT / "CONTRIBUTING.md", "package")] == list(ORDER)


EXAMPLE = r"^```(python|sh)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?$"
OWN_TESTS = ("surrogate/tuning/README.md",)
"""Pages with blocks that need data of their own; `tests/tuning/test_page.py` runs them."""


class Example(NamedTuple):
    """A block of Python or shell commands, and the printed text below it; a line with "…" is shortened."""

    page: str
    language: str
    text: str
    printed: str


def examples() -> list[Example]:
    """Return the blocks of Python, and the shell commands of ``seer`` with printed text."""
    names = [str(page.relative_to(ROOT)) for page in PAGES]
    found = [
        Example(name, *match.groups(default=""))
        for name in names
        if name not in OWN_TESTS
        for match in re.finditer(EXAMPLE, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ]
    return [each for each in found if each.language == "python" or each.printed]


@pytest.mark.parametrize("example", examples(), ids=lambda each: f"{each.page}: {each.text.splitlines()[0]}")
def test_examples_of_the_pages_run(
    example: Example, seer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(example.page, tmp_path)
    if re.search("^(import|from) torch", example.text, re.MULTILINE):
        pytest.importorskip("torch")
    out = io.StringIO()
    if example.language == "sh":
        lines = example.text.replace("\\\n", "").splitlines()
        out.write("".join(seer(*shlex.split(line, comments=True)[1:]).succeeded().out for line in lines))
    else:
        with contextlib.redirect_stdout(out):
            exec(compile(example.text, example.page, "exec"), {"__name__": "__page__"})
    assert out.getvalue()
    printed = {line for line in example.printed.splitlines() if "…" not in line}
    assert printed <= {*out.getvalue().splitlines()}


@pytest.mark.parametrize("words", [words for words in commands(README) if words[:3] == ["seer", "select", "--gpu"]])
def test_selections_of_readme_run(words: list[str], seer: Callable[..., Any]) -> None:
    result = seer(*words[1:])
    assert result.code == 0 and "algorithm" in result.out, result.err


def test_the_guide_lists_every_source_of_an_answer() -> None:
    """The order is that of the resolver."""
    guide = (ROOT / "surrogate" / "prediction" / "README.md").read_text(encoding="utf-8")
    ladder = guide.partition("## The ladder of evidence")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", ladder, re.MULTILINE)
    assert dict(rows) == SOURCES and [name for name, _ in rows] == [*SOURCES]
