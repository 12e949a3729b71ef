"""Tests that the generated parts of the pages are current."""

import pytest

from tests.pages import PARTS, ROOT, Part, page_with


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.page}: {part.name}")
def test_a_generated_part_is_current(part: Part) -> None:
    text = (ROOT / part.page).read_text(encoding="utf-8")
    assert page_with(part, text) == text, f"{part.page}: write {part.name} anew by `python -m tests pages`"
