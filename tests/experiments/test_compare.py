"""The table of comparisons: differences, shared problems, the spread of seeds, and rows of parts that were not run."""

import numpy as np
import pandas as pd
import pytest

from experiments import compare
from surrogate.dataset.columns import SIZE_COLUMNS
from tests.known import known_answers

KNOWN = known_answers(__file__)


def test_the_picker_is_compared_on_its_own_problems_and_no_model_with_itself() -> None:
    picks = pd.DataFrame(dict.fromkeys(SIZE_COLUMNS, 1) | KNOWN["picks"])
    trees, picker = compare.verdicts(KNOWN["results"], picks).to_dict("records")
    assert (trees["problems"], trees["picker_problems"], trees["vs_picker"]) == (4, 2, pytest.approx(-20))
    assert (trees["slowdown_on_picker_problems"], trees["picker_slowdown"]) == (pytest.approx(1.0), 1.25)
    assert np.isnan(trees["vs_linear"]) and np.isnan(picker["vs_picker"]) and picker["vs_linear"] == pytest.approx(20)
    assert (trees["seed_min"], trees["seed_max"], trees["worst_six_shapes_pct"]) == pytest.approx((1.0, 1.2, 100.0))


def test_a_part_replaces_its_own_rows_of_the_committed_table(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tables").mkdir()
    first, second = (part["judged"] for part in list(compare.PARTS.values())[:2])
    pd.DataFrame({"judged": [first, second], "n": [1, 2]}).to_csv(tmp_path / "tables" / "compare.csv", index=False)
    monkeypatch.setattr(compare, "HOME", tmp_path)
    new = pd.DataFrame({"judged": [second], "n": [3]})
    assert compare.with_stored(new, "compare", ("gpus",))["n"].tolist() == [1, 3]
    assert compare.with_stored(new, "compare", ())["n"].tolist() == [3]
