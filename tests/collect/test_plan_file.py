"""Plan files: text, CSV, JSON lines, Test-set-II; what is wrong is named with its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.collect.plan_file import file_problems
from surrogate.features.errors import InputError


def write(tmp_path, text):
    path = tmp_path / "plan"
    path.write_text(text)
    return path


def sizes(problems):
    return [str(problem.conv) for problem in problems]


def test_text_with_comments_and_flags(tmp_path):
    path = write(tmp_path, "# layers\nn1c3h8k4r3p1\n\n-n 2 -c 4 -H 8 -k 4 -y 1\n")
    assert sizes(file_problems(path)) == ["n1c3h8w8k4r3s3p1u1", "n2c4h8w8k4r1s1p0u1"]


def test_csv_with_settings_and_networks(tmp_path):
    path = write(tmp_path, 'n,c,h,k,r,pad_h,dtype,networks\n1,3,8,4,3,1,fp16,"A,B"\n2.0,4,8,4,1,,,\n')
    first, second = file_problems(path)
    assert (str(first.conv), first.conv.dtype, first.networks) == ("n1c3h8w8k4r3s3p1u1", "fp16", ("A", "B"))
    assert (str(second.conv), second.conv.dtype, second.networks) == ("n2c4h8w8k4r1s1p0u1", "fp32", ())


def test_json_lines(tmp_path):
    path = write(
        tmp_path,
        '{"problem": "n1c3h8k4r3p1", "direction": "bwd_data"}\n{"n": 1, "c": 3, "h": 8, "k": 4, "r": 3}\n',
    )
    problems = file_problems(path)
    assert sizes(problems) == ["n1c3h8w8k4r3s3p1u1", "n1c3h8w8k4r3s3p0u1"]
    assert [problem.conv.direction for problem in problems] == ["bwd_data", "fwd"]


def test_test_set_ii(tmp_path):
    path = write(tmp_path, "1\n128 64 56 128 56 3 1 1\n")
    (problem,) = file_problems(path)
    assert (str(problem.conv), problem.origin) == ("n128c64h56w56k128r3s3p1u1", "test-set-ii")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no problem"),
        ("# nothing\n", "holds no problem"),
        ("n1c3h8k4r3\nn1c3h8k4\n", ":2:.*lacks r"),
        ("n,c,h,k\n1,3,8,4\n", "column r is missing"),
        ("n,c,h,k,r\n1,3,8,4\n", ":2: 4 values for 5 columns"),
        ("n,c,h,k,r\n1,3,8,4,x\n", ":2: r is 'x'"),
        ("n,c,h,k,r\n1,3,8,4,1.5\n", ":2: r is '1.5'"),
        ("n,c,h,k,r\n1,3,8,4,9\n", ":2: the filter's height 9"),
        ("n,c,h,k,r,dtype\n1,3,8,4,1,fp23\n", ":2: dtype 'fp23'.*did you mean"),
        ('{"n": 1}\n', ":1: c, h, k, r missing"),
        ('{"n": 1\n', ":1: not JSON"),
        ('{"problem": "n1c3h8k4r3"}\n[1]\n', ":2: list came"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, words):
    with pytest.raises(InputError, match=words) as caught:
        file_problems(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_file(tmp_path):
    with pytest.raises(InputError, match="no such plan file"):
        file_problems(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="UTF-8"):
        file_problems(tmp_path / "binary")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("plan") / "plan"
    path.write_text(text, encoding="utf-8")
    try:
        assert file_problems(path)
    except InputError as error:
        assert "plan" in str(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n,c,h,k,r\n", "a header without problems"),
        ("problem\n", "plan"),
        ('{"a":' * 100_000, "not JSON"),
        ("n1c3h8k4r3\n" + "x" * (65 << 20), "larger than 67,108,864 bytes"),
    ],
)
def test_files_without_end_or_without_problems_are_refused(tmp_path, text, said):
    with pytest.raises(InputError, match=said) as caught:
        file_problems(write(tmp_path, text))
    assert "\n" not in str(caught.value)
