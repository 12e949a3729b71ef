"""The bundles that ship: every GPU of theirs answers right after installation."""

import pytest

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.prediction.shipped import load
from surrogate.prediction.shipped import Shipped, shipped

CONV = Conv(n=32, c=256, h=14, k=256, r=3, pad_h=1)


def test_nvidia_and_amd_ship() -> None:
    assert {"nvidia", "amd"} <= {vendor for one in shipped() for vendor in one.vendors}


@pytest.mark.parametrize("one", shipped(), ids=lambda one: one.path.name)
def test_every_gpu_of_a_bundle_answers(one: Shipped) -> None:
    for gpu in sorted(one.gpus):
        served = load(gpu, backend="numpy")
        assert served.bundle.card["licence_notices"]
        selection = served.select(CONV)
        times = [candidate.time_us for candidate in selection.candidates]
        assert len(times) >= 2 and times == sorted(times)
        for candidate in selection.candidates:
            assert candidate.lower_us < candidate.time_us < candidate.upper_us
            assert candidate.source == "model"
        assert sum(candidate.probability_best for candidate in selection.candidates) == pytest.approx(1)


def test_the_probability_of_being_the_best_counts_those_that_top_left_out() -> None:
    v100, conv = load("v100"), Conv(n=32, c=256, h=14, k=256, r=3, pad_h=1)
    every, first = v100.select(conv).candidates, v100.select(conv, top=1).candidates
    assert first == every[:1] and 0.5 < first[0].probability_best < 1.0


def test_a_workspace_limit_may_be_a_text() -> None:
    v100, conv = load("v100"), Conv(n=32, c=256, h=14, k=256, r=3, pad_h=1)
    assert (
        v100.select(conv, workspace_limit="16MiB").to_dict()
        == v100.select(conv, workspace_limit=2**24).to_dict()
    )
    with pytest.raises(InputError, match="16 Mäuse"):
        v100.select(conv, workspace_limit="16 Mäuse")
