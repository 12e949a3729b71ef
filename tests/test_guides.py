"""Tests that follow each guide to extending the package in a copy of the sources.

A guide is a section of a page whose heading names the added thing. A fenced block says after its language what it does:
``file=PATH`` is a new file, ``append=PATH`` is added to a file's end, and ``insert=PATH after="LINE"`` goes below the
first line that equals LINE. Paths start at the repository's root. ``sh`` blocks run in their order, with the copy's
``seer`` and ``python``. Afterwards the guide's tests and every ``test_registry*.py`` must pass.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("features", "surrogate", "tests")
"""Folders whose files count as touched."""
COPIED = ("experiments", "pyproject.toml", "README.md")
"""Other paths that are copied; a guide must not change them."""
LINKED = ("surrogate/bundled", "experiments/data", "experiments/figures", "experiments/tables")
"""Folders of data: their modules are copied, their other files are linked."""
MAX_LINES = 60
MAX_SECONDS = 300
NO_GUIDE = "has no guide, a section with a block that says file=, append= or insert=, to adding a new"


class Expected(NamedTuple):
    """The page of a guide, the number of files of `SOURCES` that it changes, and its maximum number of lines."""

    page: str
    files: int
    lines: int = MAX_LINES


GUIDES: dict[str, Expected] = {
    "GPU": Expected("features/README.md", 1),
    "operator": Expected("features/families/README.md", 1),
    "family": Expected("features/families/README.md", 2),
    "model": Expected("surrogate/models/README.md", 2),
    "what-if": Expected("surrogate/trace/whatif/README.md", 1),
    "format": Expected("surrogate/formats/README.md", 2),
}
"""Word of the guide's heading → expected properties of the guide."""


class Block(NamedTuple):
    """A fenced block; ``action`` is file, append or insert with its path, or run for a script."""

    action: str
    path: str
    after: str
    text: str


class Guide(NamedTuple):
    """The number of lines of a guide, and its blocks in order."""

    lines: int
    blocks: tuple[Block, ...]


def guide_of(page: Path, name: str) -> Guide | None:
    """Return the guide to adding ``name``: the shortest section with this title word and a block with a file."""
    headings: list[tuple[int, int, str]] = []
    blocks: dict[int, Block] = {}
    lines = page.read_text(encoding="utf-8").splitlines()
    opened: int | None = None
    for number, line in enumerate(lines):
        if opened is None and (heading := re.match(r"(##?) (.*)", line)):
            headings.append((number, len(heading[1]), heading[2]))
        elif opened is None and line.startswith("```"):
            opened = number
        elif opened is not None and line.rstrip() == "```":
            text = "".join(f"{inside}\n" for inside in lines[opened + 1 : number])
            blocks |= {opened: block} if (block := _block(lines[opened], text)) else {}
            opened = None
    assert opened is None, f"{page}: the block of line {(opened or 0) + 1} has no end"
    guides = []
    for position, (start, level, title) in enumerate(headings):
        # A section ends where the next one of its level or above begins.
        end = next((number for number, next_level, _ in headings[position + 1 :] if next_level <= level), len(lines))
        inside = tuple(block for number, block in blocks.items() if start < number < end)
        if re.search(rf"\b{name}\b", title, re.IGNORECASE) and any(block.action != "run" for block in inside):
            guides.append(Guide(len("\n".join(lines[start:end]).rstrip().splitlines()), inside))
    return min(guides, default=None, key=lambda guide: guide.lines)


def _block(fence: str, text: str) -> Block | None:
    """Return the block that starts with this fence; None if the block is only an example."""
    language, *words = shlex.split(fence.removeprefix("```")) or [""]
    settings = dict(word.partition("=")[::2] for word in words)
    for action in ("file", "append", "insert"):
        if action in settings:
            assert action != "insert" or "after" in settings, f'{fence}: an insertion needs after="LINE"'
            return Block(action, settings[action], settings.get("after", ""), text)
    return Block("run", "", "", text) if language == "sh" else None


def copy_of(root: Path, copy: Path) -> Path:
    """Copy the repository's sources, with links to the data; return the copy."""
    data = {str(root / folder) for folder in LINKED}

    def left_out(folder: str, names: list[str]) -> list[str]:
        hidden = [name for name in names if name == "__pycache__" or name.startswith(".")]
        return hidden + [name for name in names if str(Path(folder, name)) in data]

    for name in (*SOURCES, *COPIED):
        if (root / name).is_dir():
            shutil.copytree(root / name, copy / name, symlinks=True, ignore=left_out)
        elif (root / name).exists():
            shutil.copy2(root / name, copy / name)
    for folder in LINKED:
        for path in (root / folder).glob("*"):
            (copy / folder).mkdir(exist_ok=True)
            if path.suffix == ".py":
                shutil.copy2(path, copy / folder / path.name)
            elif path.name != "__pycache__":
                (copy / folder / path.name).symlink_to(path)
    return copy


def digests(copy: Path) -> dict[str, str]:
    """Return path → SHA-256 of every file of the copy, without links and caches."""
    paths = [path for name in (*SOURCES, *COPIED) for path in ((copy / name).rglob("*"), [copy / name])]
    files = {path for group in paths for path in group if path.is_file() and not path.is_symlink()}
    return {
        path.relative_to(copy).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if not any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(copy).parts)
    }


def write(block: Block, copy: Path) -> None:
    """Write, append or insert the text of a block."""
    path = copy / block.path
    assert path.resolve().is_relative_to(copy.resolve()), f"{block.path} lies outside the repository, or is data"
    if block.action == "file":
        assert not path.exists(), f"{block.path} is there already; append to it, or insert"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        return
    assert path.is_file(), f"{block.path}: no such file"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    position = len(lines)
    if block.action == "insert":
        equal = [number for number, line in enumerate(lines) if line.strip() == block.after.strip()]
        assert equal, f"{block.path} has no line {block.after!r}"
        position = equal[0] + 1
    lines.insert(position, block.text)
    path.write_text("".join(lines), encoding="utf-8")


def environment(copy: Path, programs: Path) -> dict[str, str]:
    """Return environment variables in which ``python`` is this interpreter and ``seer`` is the copy's package."""
    programs.mkdir()
    for name, words in (("python", ""), ("python3", ""), ("seer", " -m surrogate")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{words} "$@"\n')
        (programs / name).chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "SEER_"))}
    path = os.pathsep.join((str(programs), str(Path(sys.executable).parent), clean.get("PATH", "")))
    return clean | {"PATH": path, "PYTHONPATH": str(copy), "SEER_CACHE": str(programs / "cache")}


def run(words: list[str], copy: Path, variables: Mapping[str, str], what: str) -> None:
    """Run a program in the copy; fail with its output if it fails."""
    done = subprocess.run(
        words, cwd=copy, env=variables, capture_output=True, text=True, timeout=MAX_SECONDS, check=False
    )
    assert done.returncode == 0, f"{what}\nexit status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def follow(name: str, expected: Expected, root: Path, folder: Path) -> None:
    """Follow a guide in a copy of ``root``; fail if a step fails or another file changes."""
    guide = guide_of(root / expected.page, name)
    assert guide is not None, f"{expected.page} {NO_GUIDE} {name}"
    assert guide.lines <= expected.lines, f"{expected.page}, {name}: {guide.lines} lines; {expected.lines} are allowed"
    copy = copy_of(root, folder / "copy")
    variables = environment(copy, folder / "programs")
    before = digests(copy)
    for block in guide.blocks:
        if block.action == "run":
            run(["bash", "-e", "-c", block.text], copy, variables, block.text)
        else:
            write(block, copy)
    after = digests(copy)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    listed = {block.path for block in guide.blocks if block.action != "run"}
    assert changed <= listed, f"changed, but in no block: {', '.join(sorted(changed - listed))}"
    touched = sorted(path for path in changed if path.startswith(tuple(f"{name}/" for name in SOURCES)))
    count = f"{len(touched)} files are touched, {expected.files} expected: {', '.join(touched)}"
    assert len(touched) == expected.files, count
    tests = {copy / path for path in touched if Path(path).name.startswith("test_") and path.startswith("tests/")}
    tests |= set((copy / "tests").rglob("test_registry*.py"))
    if tests:
        words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *map(str, sorted(tests))]
        run(words, copy, variables, "the tests of what was added")


@pytest.mark.skipif(shutil.which("bash") is None, reason="the guides' commands are bash's")
@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDES)
def test_following_a_guide_works(name: str, tmp_path: Path) -> None:
    follow(name, GUIDES[name], ROOT, tmp_path)
