"""Long names in figures: wrapped, whole, and with room for the axis label beside them."""

import xml.etree.ElementTree as ElementTree

import pandas as pd

from experiments.drawing import dots

NAME = "no roofline of the algorithm in the base"
LABEL = "median error less that of boosted-terms with all of its terms, 95 % interval"


def _texts(drawn: str) -> list[str]:
    return [
        "".join(node.itertext()).strip()
        for node in ElementTree.fromstring(drawn).iter()
        if node.tag.endswith("text")
    ]


def test_long_names_and_labels_take_several_lines() -> None:
    frame = pd.DataFrame({"what": [NAME, "b"], "model": "m", "x": [1.0, 2.0]})
    drawn = dots(frame, category="what", series="model", value="x", xlabel=LABEL)
    assert drawn is not None
    texts = _texts(drawn)
    assert NAME not in texts and all(any(word in text for text in texts) for word in NAME.split())
    assert max(map(len, texts)) <= 34
    assert " ".join(" ".join(texts).split()).replace("\u00a0", " ").count("95 % interval") == 1
    assert not any(text.startswith("%") for text in texts)
