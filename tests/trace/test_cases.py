"""Small traces that were once read wrongly, each of one kind of fault: commands, and their right figures and words."""

import gzip
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from tests.known import cases


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that unpacks a sample into a folder of the test."""

    def unpack(name: str) -> Path:
        path = tmp_path / name
        path.write_bytes(gzip.decompress((Path(__file__).parent / "samples" / f"{name}.gz").read_bytes()))
        return path

    return unpack


def _figure(answer: Any, place: str) -> Any:
    """Return the value at a place such as ``summary.kernel_ms``; a number is an index, ``#`` the number of entries."""
    steps = [int(part) if part.isdigit() else part for part in place.split(".")]
    return reduce(lambda inner, step: len(inner) if step == "#" else inner[step], steps, answer)


@cases(__file__)
def test_a_trace_of_a_once_misread_kind_has_its_right_answer(
    seer, unpacked, file, words, status, right, present, absent
):
    command, *options = words
    path = unpacked(file)
    printed = seer(command, path, *options)
    text = " ".join((printed.out + printed.err).split())
    assert printed.code == status, text
    assert "\\n" not in text
    assert [word for word in present if word not in text] + [word for word in absent if word in text] == [], text
    if right:
        answer = seer(command, path, *options, "--json").succeeded().json
        found = {place: _figure(answer, place) for place in right}
        assert found == {place: pytest.approx(value, rel=5e-3) for place, value in right.items()}
