"""Universal Binary JSON: against XGBoost's own JSON, and against everything that is damaged."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.models.ubj import MAX_DEPTH, decode, encode
from tests.models.forging import small_booster

TEXTS = st.text(max_size=8)
VALUES = st.recursive(
    st.integers(-(2**63), 2**63 - 1) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


@given(VALUES)
def test_what_is_written_is_read(value: object) -> None:
    assert decode(encode(value)) == value


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32"])
def test_arrays_keep_values_and_type(dtype: str) -> None:
    array = np.array([0, 1, 100], dtype=dtype)
    found = decode(encode({"a": array}))["a"]
    assert found.dtype == dtype and found.tolist() == [0, 1, 100]


def test_by_hand() -> None:
    # {"a": [1, 2] as int8, optimised; "b": true; "c": 1.5 as float64; "d": "é"}
    content = b"{i\x01a[$i#i\x02\x01\x02i\x01bTi\x01cD\x3f\xf8\x00\x00\x00\x00\x00\x00i\x01dSi\x02\xc3\xa9}"
    assert _plain(decode(content)) == {"a": [1, 2], "b": True, "c": 1.5, "d": "é"}
    assert decode(b"[TFZ]") == [True, False, None]


def test_a_booster_reads_as_xgboost_writes_it_in_json() -> None:
    booster = small_booster()
    content = bytes(booster.save_raw("ubj"))
    wanted = json.loads(bytes(booster.save_raw("json")))
    found = _plain(decode(content))
    trees = [model["learner"]["gradient_booster"]["model"].pop("trees") for model in (found, wanted)]  # type: ignore[index]
    assert found == wanted
    for ours, theirs in zip(*trees, strict=True):
        assert ours.keys() == theirs.keys()
        for name, values in theirs.items():
            if isinstance(values, list):
                np.testing.assert_array_equal(np.float32(ours[name]), np.float32(values), err_msg=name)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_in_one_line(content: bytes) -> None:
    try:
        decode(content)
    except InputError as error:
        assert "\n" not in str(error)


def test_nesting_is_bounded() -> None:
    with pytest.raises(InputError, match="nested deeper"):
        decode(b"[" * (MAX_DEPTH + 2))


@pytest.mark.parametrize(
    "content", [b"", b"{i\x01aT", b"[$i#l\x7f\xff\xff\xff", b"TT", b"{i\x01aTi\x01aT}", b"[#i\xff", b"Q"]
)
def test_malformed_containers(content: bytes) -> None:
    with pytest.raises(InputError, match="damaged"):
        decode(content)
