"""Tests that the generated pages and parts of pages are current."""

import pytest

from tests.pages import PAGES, PARTS, ROOT, Part, page_with


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.page}: {part.name}")
def test_a_generated_part_is_current(part: Part) -> None:
    text = (ROOT / part.page).read_text(encoding="utf-8")
    assert page_with(part, text) == text, f"{part.page}: write {part.name} anew by `python -m tests pages`"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert PAGES[name]() == text, f"write {name} anew by `python -m tests pages`"
