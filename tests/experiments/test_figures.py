"""The figures that are committed: no two series of a legend look alike, in colour or in grey."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
FIGURES = sorted((Path(__file__).parents[2] / "experiments" / "figures").glob("*.svg"))


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_series_differ_without_their_colours(path: Path) -> None:
    """By marker or dashes: what is printed in grey, or seen by anyone, tells them apart."""
    root = ElementTree.parse(path).getroot()
    markers = {shape.get("id"): shape.get("d") for defs in root.iter(f"{SVG}defs") for shape in defs}
    legends = [group for group in root.iter(f"{SVG}g") if (group.get("id") or "").startswith("legend")]
    handles = [g for group in legends for g in group.iter(f"{SVG}g") if (g.get("id") or "").startswith("line2d")]
    looks = [
        [line.get("style") for line in handle if line.tag == f"{SVG}path"]
        + [markers[use.get(LINK, "")[1:]] for use in handle.iter(f"{SVG}use")]
        for handle in handles
    ]
    grey = [re.sub(r"#[0-9a-f]{6}", "#", str(look)) for look in looks]
    assert len(grey) >= 2 and len(set(grey)) == len(grey)
