"""`numbered_problems` reads SEER's text lists, which give a convolution as eight numbers."""

from pathlib import Path

from hypothesis import given, strategies as st

from surrogate.dataset.problem_list import numbered_problems
from surrogate.features.conv import Conv
from surrogate.formats.foreign_file import read_lines
from tests.known import cases


def read(folder: Path, text: str) -> list[tuple[Conv, int | None]]:
    """Return the problems of ``text``, written to a file."""
    path = folder / "Test-set-II.txt"
    path.write_text(text, encoding="utf-8")
    return numbered_problems(read_lines(path), path)


def test_numbered_lists_become_convolutions(tmp_path: Path) -> None:
    listed = read(tmp_path, "2\n128\t64\t56\t128\t0\t3\t1\t1\n128\t3\t224\t64\t112\t7\t2\t3\n")
    second = Conv(n=128, c=3, h=224, k=64, r=7, pad_h=3, stride_h=2)
    assert listed == [(Conv(n=128, c=64, h=56, k=128, r=3, pad_h=1), None), (second, None)]


@cases(__file__)
def test_separators_and_comments_are_accepted(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == [(Conv(n=128, c=64, h=56, k=128, r=3, pad_h=1), None)]


@cases(__file__)
def test_invalid_lists_are_refused(refused, tmp_path: Path, text: str, message: str) -> None:
    with refused("Test-set-II.txt", message):
        read(tmp_path, text)


sizes = st.tuples(*[st.integers(1, 512)] * 4, st.integers(1, 11), st.integers(1, 4), st.integers(0, 11))


@given(st.lists(sizes, min_size=1, max_size=8), st.booleans())
def test_written_lists_read_back(tmp_path_factory, problems, counted) -> None:
    convs = [Conv(n=n, c=c, h=w + r, k=k, r=r, stride_h=stride, pad_h=pad) for n, c, w, k, r, stride, pad in problems]
    lines = [f"{v.n} {v.c} {v.h} {v.k} {v.out_w} {v.r} {v.stride_h} {v.pad_h}" for v in convs]
    text = "\n".join([str(len(lines)), *lines] if counted else lines)
    assert [conv for conv, _ in read(tmp_path_factory.mktemp("set"), text)] == convs
