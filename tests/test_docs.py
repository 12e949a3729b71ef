"""The pages: their commands parse, their code runs or imports what is there, their links lead somewhere."""

import ast
import contextlib
import importlib
import io
import os
import re
import shlex
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from surrogate.cli import COMMANDS, seer
from surrogate.prediction.results import SOURCES
from tests.test_guides import GUIDES, guide_of
from tests.test_structure import ORDER

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted(path for room in ("features", "surrogate", "experiments") for path in (ROOT / room).rglob("README.md")),
]
SET_UP = ("python3 -m pip install . && seer compare", "python3 -m pip install '.[test]' && python3 -m pytest")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
SEER_LINE = r"`seer ([^`]+)`"
SCRIPT = r"`(python -m (?:experiments|tests|surrogate)[^`]+)`"
LINK = r"\]\(([^)#]+?)(?:#[^)]*)?\)"
CHOICES = r"(\S+) \{([\w,-]+)\}"


class Block(NamedTuple):
    """One fenced block and the line of the page where its text starts."""

    language: str
    text: str
    line: int


def blocks(page: Path, language: str) -> list[Block]:
    """The fenced blocks of a page in one language, in order."""
    text = page.read_text(encoding="utf-8")
    assert text.count("\n```") % 2 == 0, f"{page}: a block has no end"
    found = re.finditer(r"^```(\w+)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in found if m[1] == language]


def commands(page: Path) -> list[list[str]]:
    """The lines of a page's ``sh`` blocks as words, without comments, the ``NAME=VALUE`` before them and what is piped.

    Those of a guide that `test_guides` follows are left out: they name what the guide adds, and are run there.
    """
    guides = [guide_of(page, name) for name, guide in GUIDES.items() if ROOT / guide.page == page]
    followed = {block.text for guide in guides if guide for block in guide.blocks}
    texts = [block.text for block in blocks(page, "sh") if block.text not in followed]
    lines = [line for text in texts for line in text.replace("\\\n", " ").splitlines()]
    words = [shlex.split(re.sub(r"^(\w+=\S+ )+", "", line), comments=True) for line in lines]
    return [list(takewhile(lambda word: word not in ("|", "&&", ">"), line)) for line in words if line]


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that ``seer``'s words name, and the words after them."""
    command: click.Command = seer
    while isinstance(command, click.Group) and words and not words[0].startswith(("-", "{")):
        inside = command.get_command(click.Context(command), words[0])
        assert inside is not None, f"seer has no command {words[0]!r}"
        command = inside
        words = words[1:]
    return command, words


def parse(words: list[str]) -> None:
    """Fail where the command's own parser would, or a module is missing."""
    if words[0] == "seer":
        command, rest = resolve(words[1:])
        # Click keeps a command's help option as its first context has it.
        command.make_context("seer", list(rest), parent=click.Context(seer, **seer.context_settings))
    elif words[:2] == ["python", "-c"]:
        check_imports(words[2])
    elif words[:2] == ["python", "-m"]:
        module = importlib.import_module(words[2])
        own = (each for each in vars(module).values() if isinstance(each, click.Command))
        scripts = [each for each in own if each.callback and each.callback.__module__ == module.__name__]
        if scripts:
            scripts[-1].make_context(words[2], list(words[3:]))


def check_imports(code: str, written: str = "") -> None:
    """The code compiles, and what it imports from the package is there, or is a file that the page ``written`` adds."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("surrogate"):
            if f"{str(node.module).replace('.', '/')}.py" in written:
                continue
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def test_the_pages_have_what_the_tests_below_look_for() -> None:
    """A pattern that matches nothing would let every page pass."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    counts = {pattern: sum(len(re.findall(pattern, text)) for text in texts) for pattern in (SEER_LINE, SCRIPT, LINK)}
    assert all(count > 50 for count in counts.values()), counts
    assert sum(len(commands(page)) for page in PAGES) > 20
    assert sum(len(blocks(page, "python")) for page in PAGES) > 10
    lines = [line for text in texts for line in re.findall(SEER_LINE, text)]
    assert sum(len(re.findall(CHOICES, line)) for line in lines) >= 5


@every_page
def test_every_command_shown_parses(page: Path) -> None:
    """Also those that need data or a GPU; placeholders in capitals are values like others."""
    for words in commands(page):
        try:
            parse(words)
        except click.ClickException as error:
            pytest.fail(f"{' '.join(words)}: {error.format_message()}")


@every_page
def test_every_option_named_in_a_sentence_exists(page: Path) -> None:
    """`seer …` between backquotes: the command is there, and each ``--option`` is its own."""
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
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(LINK, page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        assert target.startswith("https://") or path.exists(), target


@every_page
def test_python_blocks_import_what_is_there(page: Path) -> None:
    for block in blocks(page, "python"):
        check_imports(block.text, page.read_text(encoding="utf-8"))


@every_page
def test_no_page_names_a_place_of_this_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert os.sep + "tmp" not in text and str(ROOT) not in text


def test_the_two_set_up_lines_stand_alone() -> None:
    lines = [line.strip() for line in README.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if line in SET_UP] == list(SET_UP)
    assert not [line for line in lines if line.startswith(("pip install", "python3 -m pip")) and line not in SET_UP]


@pytest.mark.parametrize("page", [README, ROOT / "surrogate" / "README.md"], ids=["README", "guide"])
def test_every_command_is_named(page: Path) -> None:
    assert set(COMMANDS) <= set(re.findall(r"seer ([a-z]+)", page.read_text(encoding="utf-8")))


def choices(command: click.Command, before: str) -> set[str]:
    """The subcommands of a group; else what the option ``before`` may be, or a command's arguments."""
    if isinstance(command, click.Group):
        return set(command.list_commands(click.Context(command)))
    if before.startswith("--"):
        kinds = [param.type for param in command.params if before in param.opts]
    else:
        kinds = [param.type for param in command.params if isinstance(param, click.Argument)]
    return {str(name) for kind in kinds if isinstance(kind, click.Choice) for name in kind.choices}


@every_page
def test_choices_in_braces_are_all_that_there_are(page: Path) -> None:
    """``seer data {check,info}`` and ``--as {json,c-header}``, of commands and of options.

    Subcommands that stand elsewhere on the page, and an alias of a device, may be left out.
    """
    mentions = re.findall(SEER_LINE, page.read_text(encoding="utf-8"))
    for text in mentions:
        command, _ = resolve(text.replace("\\|", "|").split())
        for before, listed in re.findall(CHOICES, text):
            valid = choices(command, before)
            documented = {"reference"} | {name for name in valid if f"{before} {name}" in mentions}
            mentioned = set(listed.split(","))
            assert mentioned <= valid <= mentioned | documented, (
                f"`seer {text}`: {before} {{{','.join(sorted(valid))}}}"
            )


def rows(page: Path, head: str) -> list[list[str]]:
    """The cells of the table whose head begins with ``| head |``, a list for each row."""
    _, found, below = page.read_text(encoding="utf-8").partition(f"\n| {head} |")
    assert found, f"{page} has no table that begins with {head!r}"
    lines = takewhile(lambda line: line.startswith("|"), below.splitlines()[2:])
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_table_of_packages_is_the_order_of_imports() -> None:
    assert [name.strip("`") for name, _ in rows(ROOT / "CONTRIBUTING.md", "package")] == list(ORDER)


@pytest.mark.parametrize(
    "block",
    [block for page in (README, ROOT / "surrogate" / "README.md") for block in blocks(page, "python")],
    ids=lambda block: f"line {block.line}",
)
def test_python_of_the_pages_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "import torch" in block.text:
        pytest.importorskip("torch")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\n" * (block.line - 1) + block.text, str(README), "exec"), {"__name__": "__page__"})
    assert out.getvalue()


@pytest.mark.parametrize("words", [words for words in commands(README) if words[:3] == ["seer", "select", "--gpu"]])
def test_picks_of_readme_come_out(words: list[str], seer: Callable[..., Any]) -> None:
    result = seer(*words[1:])
    assert result.code == 0 and "algorithm" in result.out, result.err


def test_the_guide_prints_the_ladder_of_evidence() -> None:
    """Every source of an answer, in the order in which the resolver asks them, with what it means."""
    guide = (ROOT / "surrogate" / "README.md").read_text(encoding="utf-8")
    ladder = guide.partition("## The ladder of evidence")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", ladder, re.MULTILINE)
    assert dict(rows) == SOURCES and [name for name, _ in rows] == [*SOURCES]


def test_selections_that_readme_prints_are_today_s(seer: Callable[..., Any]) -> None:
    """Every line of the text below README's first commands, but for those that stand for more lines."""
    shell, (text, *_) = blocks(README, "sh"), blocks(README, "text")
    kinds = next(block for block in shell if "seer select --gpu v100" in block.text)
    answers = [seer(*shlex.split(line)[1:]).succeeded().out.splitlines() for line in kinds.text.splitlines()]
    shown = [line for line in text.text.splitlines() if line != "…"]
    assert len(answers) == 2 and len(shown) > 6
    assert [line for line in shown if line not in [*answers[0], *answers[1]]] == []
