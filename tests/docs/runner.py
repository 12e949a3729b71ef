"""Runs what a page shows, in a folder of its own: commands through the entry point, Python blocks as scripts."""

import contextlib
import importlib
import io
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from tests.docs.markdown import Block, commands


def run_python(block: Block, page: Path) -> str:
    """What the block prints."""
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with contextlib.redirect_stdout(out):
        exec(code, {"__name__": "__page__"})
    return out.getvalue()


def run_seer(words: list[str]) -> str:
    """Standard output of ``seer …``; fails where the exit status is not 0."""
    from surrogate.cli import main

    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", words)
        try:
            main()
        except SystemExit as end:
            assert end.code in (0, None), f"{' '.join(words)}: exit status {end.code}"
    return out.getvalue()


def run_block(block: Block, page: Path) -> str:
    """The output of a Python block, or of the last command of a ``sh`` block (``seer …``, ``python -c …``)."""
    if block.language == "python":
        return run_python(block, page)
    out = ""
    for words in commands(block.text):
        is_python = words[:2] == ["python", "-c"]
        out = run_python(replace(block, text=words[2]), page) if is_python else run_seer(words)
    return out


def parse(words: list[str]) -> None:
    """Run the command's own parser. Raises `click.UsageError`, or `LookupError` where there is no such command."""
    if words[0] == "seer":
        from surrogate.cli import seer

        command, rest = resolve(seer, words[1:])
        command.make_context("seer", rest)
    elif words[:2] == ["python", "-c"]:
        compile(words[2], "<command>", "exec")
    elif words[:2] == ["python", "-m"]:
        module = importlib.import_module(words[2])
        found = [each for each in vars(module).values() if isinstance(each, click.Command)]
        if found:
            found[-1].make_context(words[2], list(words[3:]))
    else:
        raise LookupError(f"{' '.join(words)}: neither seer nor python -m")


def resolve(command: click.Command, words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the first words name, and the words after them."""
    rest: list[Any] = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest[0]
        found = command.get_command(click.Context(command), name)
        if found is None:
            if "{" in name:
                break
            raise LookupError(f"seer has no command {name!r}")
        command = found
        rest.pop(0)
    return command, rest


TRACE = "resnet50_b32_training_v100.json.gz"


def provide(folder: Path, root: Path) -> bool:
    """Put README.md's trace into ``folder``; False where the measured data is not beside the project."""
    source = root.parent / "shared" / "data" / "traces" / TRACE
    if not source.is_file():
        return False
    shutil.copyfile(source, folder / "trace.json.gz")
    return True
