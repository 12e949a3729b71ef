"""`read_list` reads text, CSV, JSON lines, parquet and Test-set-II, and refuses invalid lists with the line."""

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from surrogate.collect.plan_source import file_problems
from surrogate.dataset.problem_list import expand_problems, read_list
from surrogate.features.conv import Conv
from surrogate.features.description import Description
from surrogate.features.errors import InputError
from surrogate.features.families import FAMILIES, Family
from surrogate.features.gpu import gpu
from tests.known import known_answers

ANSWERS = known_answers(__file__)
FIRST = Conv(n=1, c=3, h=224, k=64, r=7)


def _write(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "list"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("text", ANSWERS["every_form"])
def test_read_list_accepts_every_form(tmp_path: Path, text: str) -> None:
    assert [listed.problem for listed in read_list(_write(tmp_path, text))] == [FIRST]


def _on_a100(family: Family, dtype: str) -> str:
    return family.default_math(dtype, gpu("a100"))


def test_csv_rows_carry_settings_networks_and_operators(tmp_path: Path) -> None:
    """A row without a filter is the operator in its column ``op``."""
    text = (
        "n,c,h,k,r,dtype,layout,networks,op,heuristic_algorithm,name\n"
        '1,3,224,64,7,fp16,NHWC-NHWC-NHWC,"A, B",conv,GEMM,first\n'
        "1,64,112,,,,,,RELU,,\n1,3,224,64,7,,,,,,\n"
    )
    conv, relu, default = read_list(_write(tmp_path, text))
    assert conv.problem is not None and (conv.problem.dtype, conv.problem.layout) == ("fp16", "NHWC")
    assert (conv.networks, conv.heuristic, conv.name) == (("A", "B"), "GEMM", "first")
    assert (relu.problem, relu.operator) == (None, "RELU")
    assert (default.problem, default.heuristic, default.where) == (FIRST, None, "line 4")
    assert [planned.networks for planned in file_problems(tmp_path / "list")] == [("A", "B"), ()]


def test_parquet_is_recognised_by_its_content(tmp_path: Path) -> None:
    """The file's name has no suffix; two rows of one problem differ in their algorithm."""
    row = {"n": 1, "c": 3, "h": 224, "w": 224, "k": 64, "r": 7, "s": 7, "algorithm": "GEMM", "extra": 1.5}
    frame = pd.DataFrame([row, row | {"algorithm": "FFT"}, row | {"n": 8}])
    frame.to_parquet(tmp_path / "list")
    with pytest.warns(UserWarning, match="column extra is not read"):
        listed = read_list(tmp_path / "list")
    assert [each.problem for each in listed] == [FIRST, FIRST, FIRST.with_batch(8)]
    assert [each.algorithm for each in listed] == ["GEMM", "FFT", "GEMM"]


@pytest.mark.parametrize("header", ["n,c,h,k,r,pad_h,u,v", "n,c,h,k,r,padding,stride,v"])
def test_letters_and_usual_names_are_columns_of_sizes(tmp_path: Path, header: str) -> None:
    (row,) = read_list(_write(tmp_path, f"{header}\n32,256,14,256,3,1,2,2\n"))
    assert str(row.problem) == "n32c256h14w14k256r3s3p1u2"
    frame = expand_problems(pd.read_csv(tmp_path / "list"), None, "the table", {})
    assert (frame[["pad_h", "stride_h"]] == [1, 2]).all(axis=None)


def test_problems_of_other_families_are_read(tmp_path: Path) -> None:
    """A problem is written as on the command line, or as an operator with columns of sizes."""
    path = _write(tmp_path, "gemm:m64n32k16\nn1c3h224k64r7\nsoftmax:n8c100\n")
    problems = [listed.problem for listed in read_list(path)]
    assert [str(problem).split(":")[0] for problem in problems][::2] == ["gemm", "softmax"]
    table = "operator,m,n,k,c,h,r\ngemm,64,32,16,,,\n,,1,64,3,224,7\nsoftmax,,8,,100,,\n"
    assert [listed.problem for listed in read_list(_write(tmp_path, table))] == problems


@pytest.mark.parametrize("text", ANSWERS["products"])
def test_tables_of_matrix_products_are_read(tmp_path: Path, text: str) -> None:
    """Sizes and settings are columns; the default ``math`` is the GPU's."""
    expected = {"batch": 1, "m": 64, "n": 32, "k": 16, "dtype": "bf16", "math": "default", "variant": ""}
    (listed,) = read_list(_write(tmp_path, text), default_math=_on_a100)
    assert listed.problem is not None and listed.problem.to_dict() == {"kind": "gemm", **expected}
    with_math = text.replace("dtype", "math").replace("DTYPE", "math").replace("bf16", "fma")
    (listed,) = read_list(_write(tmp_path, with_math), default_math=_on_a100)
    assert listed.problem is not None and listed.problem.to_dict()["math"] == "fma"


@pytest.mark.parametrize("text", ANSWERS["described_kernel"])
def test_problems_of_a_described_kernel_are_read(tmp_path: Path, text: str) -> None:
    """Texts may omit the kernel's name; columns of tables are case-sensitive."""
    layouts = {"layout": ("NCHW", "NHWC")}
    family = FAMILIES.from_description(Description("listed_kernel", ("m", "Long"), {"block": (1, 2)}, layouts))
    (listed,) = read_list(_write(tmp_path, text), family)
    assert listed.problem == family.problem({"m": 64, "Long": 9}, {"layout": "NCHW"})


def test_invalid_lists_of_a_described_kernel_are_refused(refused, tmp_path: Path) -> None:
    layouts = {"layout": ("NCHW", "NHWC")}
    family = FAMILIES.from_description(Description("listed_kernel", ("m",), {"block": (1, 2)}, layouts))
    for text, message in ANSWERS["invalid_described"]:
        with refused(str(tmp_path), message):
            read_list(_write(tmp_path, text), family)
    pd.DataFrame({"m": [64, 64, 8], "block": [1, 2, 1]}).to_parquet(tmp_path / "table")
    assert len({listed.problem for listed in read_list(tmp_path / "table", family)}) == 2


@pytest.mark.parametrize(("content", "message"), ANSWERS["invalid"])
def test_invalid_lists_are_refused(refused, tmp_path: Path, content: str | bytes, message: str) -> None:
    with refused(str(tmp_path), message):
        read_list(_write(tmp_path, content))


def test_a_missing_file_is_refused(refused, tmp_path: Path) -> None:
    with refused("no such file"):
        read_list(tmp_path / "none")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    """An error message names the file."""
    path = _write(tmp_path, text.encode("utf-8", "surrogatepass"))
    try:
        assert read_list(path)
    except InputError as error:
        assert str(path) in str(error)
