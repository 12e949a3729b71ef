"""Texts and flags of convolutions: conversion both ways, defaults, and errors that name the faulty part."""

import pytest
from hypothesis import given, strategies as st

from surrogate.features.algorithms import newest, version_key
from surrogate.features.conv import DRIVER_FLAGS, EXAMPLE, Conv, parse, parse_flags
from tests.features.known_answers import ANSWERS

CONVS = st.from_type(Conv)


def _settings(conv: Conv) -> dict[str, str]:
    return {name: getattr(conv, name) for name in ("dtype", "math", "layout", "direction")}


@given(CONVS)
def test_conv_survives_conversion_to_text(conv: Conv) -> None:
    assert parse(str(conv), **_settings(conv)) == conv


@given(CONVS)
def test_conv_survives_conversion_to_flags(conv: Conv) -> None:
    flags = [word for flag, name in DRIVER_FLAGS.items() for word in (flag, str(getattr(conv, name)))]
    assert parse_flags(flags, **_settings(conv)) == conv
    assert parse(" ".join(flags), **_settings(conv)) == conv


@given(st.permutations(["n2", "c8", "h9", "w7", "k4", "r3", "s1", "p2", "q0", "u1", "v2", "l1", "j2", "g4"]))
def test_order_of_parts_does_not_matter(parts: list[str]) -> None:
    sizes = {"n": 2, "c": 8, "h": 9, "w": 7, "k": 4, "r": 3, "s": 1, "pad_h": 2, "pad_w": 0, "stride_h": 1}
    expected = Conv(**sizes, stride_w=2, dilation_h=1, dilation_w=2, groups=4)
    assert parse("".join(parts)) == expected


def test_example_is_in_canonical_form() -> None:
    conv = parse(EXAMPLE)
    assert conv == Conv(n=32, c=256, h=14, k=256, r=3, pad_h=1)
    assert str(conv) == "n32c256h14w14k256r3s3p1u1"


def test_omitted_sizes_get_defaults() -> None:
    # w=h, s=r, p=0, q=p, u=1, v=u, l=1, j=l, g=1
    assert parse("n1c4h9k8r3") == parse("n1c4h9w9k8r3s3p0q0u1v1l1j1g1")
    assert parse("n1c4h9k8r3p2u2l2") == parse("n1c4h9k8r3p2q2u2v2l2j2")
    assert parse("  n1c4h9k8r3 \n") == parse("n1c4h9k8r3")


def test_flags_set_every_size() -> None:
    words: str = "-n 32 -c 256 -H 14 -W 28 -k 128 -y 3 -x 5 -p 1 -q 2 -u 2 -v 1 -l 1 -j 1 -g 2"
    assert parse_flags(list(words.split())) == Conv(
        n=32, c=256, h=14, w=28, k=128, r=3, s=5, pad_h=1, pad_w=2, stride_h=2, stride_w=1, groups=2
    )


@pytest.mark.parametrize(("text", "words"), ANSWERS["bad_texts"])
def test_invalid_text_is_refused_in_one_line(refused, text: str, words: list[str]) -> None:
    with refused(*(EXAMPLE if word == "EXAMPLE" else word for word in words)):
        parse(text)


@pytest.mark.parametrize("ascending", [*ANSWERS["versions"], ["3", "9" * 5000]])
def test_versions_sort_from_old_to_new(ascending: list[str]) -> None:
    assert sorted(set(ascending), key=version_key) == ascending
    assert newest(ascending) == ascending[-1]


def test_newest_of_no_versions_is_empty() -> None:
    assert newest([]) == ""
