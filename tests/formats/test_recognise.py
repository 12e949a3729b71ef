"""Tests that a refused file is named as what it is, by every reader and in every direction."""

import gzip
from pathlib import Path

import pytest

from surrogate.cli import COMMANDS
from surrogate.features.errors import InputError
from surrogate.formats import FORMATS
from surrogate.formats.recognise import file_kinds, recognised
from tests.known import cases

SAMPLES = [*sorted((Path(__file__).parent / "samples").iterdir())]


@cases(__file__)
def test_a_refused_file_is_named_as_what_it_is(seer, tmp_path, content, words, expected) -> None:
    """A character is a byte. A content after "gzip " is packed."""
    data = content.encode("latin-1")
    data = gzip.compress(data[5:], mtime=0) if content.startswith("gzip ") else data
    (tmp_path / "given").write_bytes(data)
    result = seer(*words.replace(" o.csv", f" {tmp_path}/o.csv").split(), tmp_path / "given")
    assert result.is_refusal(f"{tmp_path / 'given'}: this is ", expected), result.err


def test_every_reader_names_every_other_readers_file() -> None:
    """A sample of one format is refused by the others as that format, in one line."""
    samples = {path: kind for path in SAMPLES if (kind := recognised(path))}
    readers = {tuple(reader.split()) for kind in file_kinds() for reader in kind.readers}
    assert {words[0] for words in readers} <= {*COMMANDS}
    assert {words[1] for words in readers if words[0] == "import"} == {*FORMATS}
    for name, each in FORMATS.items():
        given = {option: value for option, value in (("gpu", "v100"), ("family", "gemm")) if option in each.parameters}
        for path, kind in samples.items():
            if f"import {name}" not in kind.readers:
                with pytest.raises(InputError, match=f"this is {kind.name}"):
                    each.read([path], **given)
