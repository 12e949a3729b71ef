"""Tests that a refused file is named as what it is, by every reader and in every direction."""

import gzip
from pathlib import Path

import pytest

from surrogate.cli import COMMANDS
from surrogate.features.errors import InputError
from surrogate.formats import FORMATS
from surrogate.formats.recognise import file_kinds, recognised

SAMPLES = [*sorted((Path(__file__).parent / "samples").iterdir())]
TUNABLE = b"Validator,PT_VERSION,2.6.0\nGemmTunableOp_Half_TN,tn_768_200_1536,Default,0.1\n"
PERF_DB = b"64-56-56-3x3-32-56-56-16-1x1-1x1-1x1-0-NCHW-FP32-F=ConvOclDirectFwd:16,16,32\n"
CONFIG = b'{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}'


@pytest.mark.parametrize(
    ("content", "words", "expected"),
    [
        (TUNABLE, "import tensile -o o.csv", "`seer import tunableop`"),
        (b"\xef\xbb\xbf" + TUNABLE, "import nvprof --gpu v100 -o o.csv", "`seer import tunableop`"),
        (gzip.compress(TUNABLE, mtime=0), "data check", "`seer import tunableop`"),
        (b'"ID","Process ID","Kernel Name"\n', "import nvprof --gpu v100 -o o.csv", "`seer import ncu`"),
        (b"ID;Kernel Name;Duration [us]\n", "import nvprof -o o.csv", "`seer import ncu`"),
        (b"| Time (%) | Total Time (ns) | Name |\n", "import cutlass -o o.csv", "`seer import nvprof`"),
        (b'[[{"x": 1, "time": 2.0}], {}]', "import aiconfigurator -o o.csv", "`seer import kernel-tuner`"),
        (b"gpu,run,kernel_index,kernel_name,time_us\n", "train -o b", "a kernel table, not a dataset"),
        (b"==PROF== Connected\n==WARNING== No kernels were profiled.\n", "import ncu -o o.csv", "without any kernel"),
        (b"gemm:m4n4k4\n", "predict --gpu h100 -o o.csv --data", "a list of problems"),
        (b'"ID","Process ID","Kernel Name"\n', "trace kernels", "`seer import ncu`"),
        (PERF_DB, "import miopen --gpu mi100 -o o.csv", "a perf-db of MIOpen"),
        (b"SQLite format 3\0...CREATE TABLE perf_db", "import miopen --gpu mi100 -o o.csv", "a perf-db of MIOpen"),
        (b"version https://git-lfs.github.com/spec/v1\n", "train -o b", "`git lfs pull`"),
        (b"<!DOCTYPE html><html>", "import miopen --gpu mi100 -o o.csv", "an HTML page"),
        (b"\x89PNG\r\n\x1a\n", "network --gpu h100", "a picture"),
        (CONFIG, "import kernel-tuner --gpu v100 -o o.csv", "`seer network`"),
        (b'{"traceEvents": []}', "network --gpu h100", "`seer trace summary`"),
        (b"\x08\x08\x12\x07pytorch:\x05", "trace summary", "an ONNX model"),
        (b"PAR1....PAR1", "trace summary", "`seer data info`"),
        (b" \n", "import aiter --dtype bf16 -o o.csv", "an empty file"),
    ],
)
def test_a_refused_file_is_named_as_what_it_is(seer, tmp_path, content, words, expected) -> None:
    (tmp_path / "given").write_bytes(content)
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
