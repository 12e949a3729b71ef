"""README.md: every block runs or parses, the outputs shown are those had, and its links and options exist."""

import re
from pathlib import Path

import click
import pytest

from tests.docs.markdown import Step, blocks, commands, missing_label, steps, unlike, without_settings
from tests.docs.runner import TRACE, parse, provide, resolve, run_block

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [
    README,
    *sorted(
        path for room in ("features", "surrogate", "experiments") for path in (ROOT / room).rglob("README.md")
    ),
]
SET_UP = (
    "python3 -m pip install . && seer compare",
    "python3 -m pip install '.[test]' && python3 -m pytest",
)
REFRESH = "python -m tests.docs.refresh"
STEPS = [step for step in steps(README) if step.block.language == "python" or step.shown is not None]
QUICK = [step for step in STEPS if step.shown is None or not step.shown.differs]
LONG = [step for step in STEPS if step not in QUICK]


def _name(step: Step) -> str:
    return f"line {step.block.line}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with nothing in it, and no tuning cache of the user's."""
    monkeypatch.setenv("SEER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("step", QUICK, ids=_name)
def test_what_is_shown_is_what_comes_out(step: Step, folder: Path) -> None:
    if "write_onnx" in step.block.text:
        pytest.importorskip("onnx")
    if "trace.json.gz" in step.block.text and not provide(folder, ROOT):
        pytest.skip(f"no measured data: {TRACE} is missing beside the project")
    had = run_block(step.block, README)
    if step.shown is not None:
        missing = unlike(step.shown.text, had)
        assert not missing, f"not in the output: {missing}\nIf the change is meant: {REFRESH}\n{had}"


@pytest.mark.slow
@pytest.mark.parametrize("step", LONG, ids=_name)
def test_long_ones_run_and_look_like_it(step: Step, folder: Path) -> None:
    del folder
    assert step.shown is not None
    had = run_block(step.block, README)
    assert not missing_label(step.shown.text, had), had


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_shown_parses(page: Path) -> None:
    """Also those that need data or a GPU; placeholders in capitals are values like others."""
    for block in blocks(page):
        for words in map(without_settings, commands(block.text) if block.language in ("sh", "") else ()):
            if words[0] in ("seer", "python"):
                try:
                    parse(words)
                except (click.ClickException, LookupError) as error:
                    pytest.fail(f"{page.name}: {' '.join(words)}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_option_named_in_a_sentence_exists(page: Path) -> None:
    """`seer …` between backquotes: the command is there, and each ``--option`` is its own."""
    from surrogate.cli import seer

    for text in re.findall(r"`seer ([^`]+)`", page.read_text(encoding="utf-8")):
        words = text.replace("\\|", "|").split()
        command, _ = resolve(seer, words)
        known = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
        known |= {"--help", "--version"}
        asked = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))
        assert asked <= known or isinstance(command, click.Group), f"seer {text}: {asked - known}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_script_named_in_a_sentence_exists(page: Path) -> None:
    """`python -m …` between backquotes: the module is there, and takes these words."""
    for text in re.findall(
        r"`(python -m (?:experiments|tests|surrogate)[^`]+)`", page.read_text(encoding="utf-8")
    ):
        try:
            parse(text.split())
        except (click.ClickException, ImportError) as error:
            pytest.fail(f"{page.name}: {text}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_command_table_lists_every_command() -> None:
    from surrogate.cli import COMMANDS

    text = README.read_text(encoding="utf-8")
    table = text[text.index("## Commands") : text.index("## Method")]
    assert set(COMMANDS) == set(re.findall(r"`seer ([a-z]+)", table))


def test_the_two_set_up_lines_stand_alone() -> None:
    lines = [line.strip() for line in README.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if line in SET_UP] == list(SET_UP)
    assert not [
        line for line in lines if line.startswith(("pip install", "python3 -m pip")) and line not in SET_UP
    ]


@pytest.mark.parametrize(
    ("shown", "had", "missing"),
    [
        ("a  1.00", "a   1.01", ""),
        ("a  1.00", "a  1.10", "a  1.00"),
        ("a  1.00", "b  1.00", "a  1.00"),
        ("a 1,234", "a 1,235\nmore", "(the end; there is more: 'more')"),
        ("a 1\n…", "a 1\nmore", ""),
        ("a 1\n…\nend", "a 1\nmore\nend", ""),
        ("a 1\n…\nend", "a 1\nmore", "end"),
        ("a 1\nb", "a 1", "b"),
    ],
)
def test_outputs_are_compared(shown: str, had: str, missing: str) -> None:
    assert unlike(shown, had) == missing


def test_headings_alone_are_compared_where_numbers_differ() -> None:
    assert not missing_label("name  time\na  1.00", "other\nname time\nb 7")
    assert missing_label("name  time\na  1.00", "name speed") == "name  time"
