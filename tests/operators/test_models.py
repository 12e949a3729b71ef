"""Boosted trees and the blend on invented tables; the judge on held-out rows."""

import numpy as np
import pytest

from surrogate.features.errors import InputError
from surrogate.operators import hold_out
from surrogate.operators.blended import BlendedOperators, CrossFit
from surrogate.operators.boosted import BoostedOperators, call_costs
from surrogate.operators.judging import HeldOut
from surrogate.operators.launch import NO_LAUNCH, Launch, fit_launches, launch_of
from surrogate.operators.models import operator_model
from surrogate.operators.table import OperatorTable

FEW = {"rounds": 60}


def error(predicted_us: np.ndarray, table: OperatorTable) -> float:
    """Median relative error."""
    return float(np.median(np.abs(predicted_us / table.time_us - 1)))


def test_boosted_learns_what_the_table_says(operators: OperatorTable) -> None:
    fold = np.arange(len(operators)) % 4 == 0
    fitted = BoostedOperators(**FEW).fit(operators.take(~fold))
    assert error(fitted.predict_us(operators.take(fold)), operators.take(fold)) < 0.08
    assert fitted.known == {"torch|relu|", "torch|softmax|", "torch|bmm|"}


def test_boosted_survives_saving(operators: OperatorTable) -> None:
    fitted = BoostedOperators(**FEW).fit(operators)
    again = BoostedOperators.load(fitted.params, fitted.save())
    assert again.predict_us(operators).tolist() == fitted.predict_us(operators).tolist()
    assert again.call_us("t4", "torch") == fitted.call_us("t4", "torch") > 0
    with pytest.raises(InputError, match="no booster"):
        BoostedOperators.load({}, {"facts.json": b'{"labels": {}, "call_us": {}}'})


def test_a_library_never_seen_is_not_predicted(operators: OperatorTable) -> None:
    fitted = BoostedOperators(rounds=5).fit(operators)
    assert np.isnan(fitted.predict_us(OperatorTable(operators.frame.assign(library="cudnn")))).all()
    elsewhere = fitted.predict_us(OperatorTable(operators.frame.assign(gpu="h100-sxm")))
    assert (elsewhere > 0).all()  # a new GPU takes the library's median call cost


def test_call_costs_by_hand() -> None:
    times = np.concatenate([np.full(100, 10.0), np.full(100, 30.0)])
    gpus, libraries = np.repeat(["a", "b"], 100), np.repeat("torch", 200)
    assert call_costs(gpus, libraries, times) == {"a|torch": 10.0, "b|torch": 30.0, "|torch": 20.0}


def test_shares_by_hand(operators: OperatorTable) -> None:
    """Trees twice too slow, network half as long as it should: the middle is exact; for bmm the network alone is."""
    time_us = operators.time_us
    product = (operators.frame["kind"] == "bmm").to_numpy()
    network = np.where(product, time_us, time_us / 2)
    held = CrossFit(2 * time_us, network)
    shares = held.shares(operators, 20, 0.1)
    assert shares == {"torch|relu|": 0.5, "torch|softmax|": 0.5, "torch|bmm|": 1.0}
    assert held.blended_us(operators, shares) == pytest.approx(time_us)
    assert held.shares(operators, 10**6, 0.1) == {}
    assert set(held.shares(operators, 20, 1.0).values()) == {0.0}  # nothing is gained enough
    silent = CrossFit(time_us, np.full(len(operators), np.nan))
    assert silent.blended_us(operators, shares) == pytest.approx(time_us)


def test_launch_recovers_the_invented_constant(operators: OperatorTable) -> None:
    """relu takes 400 / SMs + 1.3 · roofline, so the constant is the call itself."""
    found = fit_launches(operators)
    one = found["t4|torch"]
    assert one.slope == pytest.approx(1.3, rel=0.1)
    assert one.launch_us == pytest.approx(400 / 40, rel=0.15)
    assert launch_of(found, "h100-sxm", "torch") == found["|torch"]
    assert launch_of(found, "t4", "cudnn") == NO_LAUNCH


def test_kernel_time_by_hand() -> None:
    """Beyond the host's reach the constant comes off; within it the bytes speak; never below the roofline."""
    launch = Launch(call_us=30.0, launch_us=15.0, slope=1.2)
    found = launch.kernel_us(np.array([115.0, 31.0, 31.0, 50.0]), np.array([80.0, 5.0, 40.0, 49.0]))
    assert found == pytest.approx([100.0, 1.2 * 5 + 2, 40.0, 49.0])


def test_held_out_rows(operators: OperatorTable) -> None:
    """Per-group errors by hand, and coverage where a model says nothing."""
    half = np.where(operators.frame["kind"] == "bmm", np.nan, operators.time_us * 1.5)
    held = HeldOut(operators, "shape", np.zeros(len(operators)), {"half": half, "exact": operators.time_us})
    rows = held.rows("kind").set_index(["kind", "model"])
    assert rows.loc[("relu", "half"), "median_ape"] == pytest.approx(0.5)
    assert rows.loc[("bmm", "half"), ["n", "coverage", "shapes"]].tolist() == [0, 0, 0]
    assert rows.loc[("bmm", "exact"), "mape"] == 0
    assert len(held.rows()) == 2
    paired = held.against("exact", "kind").set_index(["kind", "model"])
    assert paired.loc[("relu", "half"), "reference_median_ape"] == 0


def test_hold_out_by_shape_and_gpu(operators: OperatorTable) -> None:
    seen: list[str] = []
    models = ("roofline", "gemm-interpolation", "seer-polynomials")
    held = hold_out(operators, folds=3, models=models, progress=lambda done, total, text: seen.append(text))
    assert len(seen) == 9
    names, fold = operators.shape_names(), held.fold
    assert all(len(set(fold[names == name])) == 1 for name in set(names))
    by_gpu = hold_out(operators, by="gpu", models=models)
    assert set(by_gpu.predicted_us) == {"roofline"}  # the others need the GPU's own rows


def test_bad_questions(operators: OperatorTable) -> None:
    one_gpu = operators.take((operators.frame["gpu"] == "t4").to_numpy())
    with pytest.raises(InputError, match="one gpu alone"):
        hold_out(one_gpu, by="gpu", models=("roofline",))
    with pytest.raises(InputError, match="split 'rows' is unknown"):
        hold_out(operators, by="rows")
    with pytest.raises(InputError, match="did you mean roofline"):
        operator_model("rooflin")


def test_blend_fits_and_survives_saving(operators: OperatorTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BoostedOperators.DEFAULTS, "rounds", 20)
    fitted = BlendedOperators().fit(operators)
    assert set(fitted.shares) == {"torch|relu|", "torch|softmax|", "torch|bmm|"}
    assert error(fitted.predict_us(operators), operators) < 0.2
    again = BlendedOperators.load(fitted.params, fitted.save())
    assert again.predict_us(operators) == pytest.approx(fitted.predict_us(operators), rel=1e-2)
