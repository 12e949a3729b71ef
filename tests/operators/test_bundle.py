"""Training, the bundle's folder, and the predictor."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu
from surrogate.features.operators import Operator, operator
from surrogate.operators import (
    OperatorBundle,
    OperatorPredictor,
    load_operators,
    operator_time_us,
    save_operators,
)
from surrogate.operators.boosted import BoostedOperators
from surrogate.operators.bundle import INDEX
from surrogate.operators.stand_ins import candidates
from surrogate.operators.table import OperatorTable
from surrogate.operators.training import train_table

RELU = operator("relu", n=256, c=512)


@pytest.fixture(scope="module")
def bundle(operators: OperatorTable) -> OperatorBundle:
    """Trained on the invented table, with few rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BoostedOperators.DEFAULTS, "rounds", 20)
        return train_table(operators)


@pytest.fixture(scope="module")
def folder(bundle: OperatorBundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle on disk."""
    path = tmp_path_factory.mktemp("bundles") / "operators"
    save_operators(bundle, path)
    save_operators(bundle, path)  # replaces itself
    return path


def test_card_and_intervals(bundle: OperatorBundle, operators: OperatorTable) -> None:
    card = bundle.to_dict()
    assert card["data"]["gpus"] == ["t4", "v100-pcie-32gb"]
    assert card["held_out"]["by_operator"]["torch|relu"]["median_ape"] < 0.2
    assert card["unseen_gpu"]["by_operator"]["torch|relu"]["n"] == (operators.frame["kind"] == "relu").sum()
    found = bundle.predict(operators)
    inside = (found["lower_us"] <= operators.time_us) & (operators.time_us <= found["upper_us"])
    assert inside.mean() > 0.85
    assert found["in_domain"].all()
    assert repr(bundle) == f"OperatorBundle({len(operators)} rows, 2 GPUs)"


def test_unseen_gpus_are_told_apart(bundle: OperatorBundle, operators: OperatorTable) -> None:
    elsewhere = OperatorTable(operators.frame.assign(gpu="h100-sxm"))
    found, seen = bundle.predict(elsewhere), bundle.predict(operators)
    assert not found["in_domain"].any()
    wide, narrow = found["upper_us"] / found["lower_us"], seen["upper_us"] / seen["lower_us"]
    assert (wide >= narrow * 0.999).all()


def test_loads_what_was_saved(folder: Path, bundle: OperatorBundle, operators: OperatorTable) -> None:
    again = load_operators(folder)
    found, expected = again.predict(operators), bundle.predict(operators)
    assert found["predicted_us"].to_numpy() == pytest.approx(expected["predicted_us"].to_numpy(), rel=1e-2)
    assert found["in_domain"].equals(expected["in_domain"])
    assert again.launches == bundle.launches
    assert {file.suffix for file in folder.iterdir()} == {".json", ".ubj"}


@pytest.mark.parametrize("name", ["memory-torch.ubj", "facts.json", "network.json", "domain.json"])
def test_a_changed_file_is_refused_before_it_is_parsed(folder: Path, tmp_path: Path, name: str) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_bytes((folder / name).read_bytes()[:-1] + b"!")
    with pytest.raises(InputError, match="differs from its hash"):
        load_operators(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=f"{name} is missing"):
        load_operators(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 99}, "reads up to 1; upgrade"),
        ({"columns_version": 0}, "fitted on columns version 0"),
        ({"sha256": {"../x": "0"}}, "outside the bundle"),
        ({"sha256": {}}, "is incomplete"),
    ],
)
def test_odd_indexes_are_refused(
    folder: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    index = json.loads((folder / INDEX).read_bytes()) | changes
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(InputError, match=message) as caught:
        load_operators(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is damaged"), ("[]", "is incomplete"), ("{}", "is incomplete")]
)
def test_damaged_indexes_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(InputError, match=message):
        load_operators(tmp_path)


def test_places_that_are_no_bundle(bundle: OperatorBundle, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no operator bundle there"):
        load_operators(tmp_path / "missing")
    with pytest.raises(InputError, match="exists and is no operator bundle"):
        save_operators(bundle, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        save_operators(bundle, tmp_path / "file" / "such")


def test_predictor(folder: Path) -> None:
    """In order, each with its source; the same object for the same operator; kernels shorter than their calls."""
    predictor = OperatorPredictor.load("t4", folder)
    bag = operator("embedding_bag", batch=64, rows=1000, dim=64)
    found = predictor.predict([RELU, bag, RELU, operator("bmm", batch=4, m=64, n=64, k=64)])
    assert [one.source for one in found] == ["model", "roofline", "model", "model"]
    assert found[0] is found[2]
    assert found[0].operator is RELU
    for one in found:
        assert 0 < one.lower_us <= one.time_us <= one.upper_us
        assert one.operator.roofline_us(predictor.gpu) <= one.time_us <= one.call_us
        assert one.to_dict()["operator"] == str(one.operator)
    assert found[0].library == "torch"
    assert found[0].in_domain
    assert predictor.predict([]) == []


def test_stand_ins(folder: Path) -> None:
    """A copy moves what relu moves; a linear layer is a product; an operator of another room is its roofline."""
    predictor = OperatorPredictor.load("t4", folder)

    class Odd(type(RELU)):
        kind = "odd"

    copy, linear, odd = predictor.predict(
        [operator("copy", n=256, c=512), operator("linear", m=64, n=64, k=64), Odd(n=256, c=512)]
    )
    assert (copy.source, copy.in_domain) == ("model", False)
    assert copy.time_us == pytest.approx(predictor.predict([RELU])[0].time_us)
    assert linear.source == "model"
    assert odd.source == "roofline"


def test_candidates_keep_the_sizes() -> None:
    first, *others = candidates(operator("gemm", m=3, n=5, k=7, dtype="fp16"))
    assert first.kind == "gemm"
    assert [one.kind for one in others] == ["linear", "bmm"]
    assert all(one.sizes == first.sizes and one.dtype == "fp16" for one in others)
    assert [one.kind for one in candidates(operator("gemm", batch=2, m=3, n=5, k=7))] == ["gemm", "bmm"]
    assert [one.variant for one in candidates(operator("max_pool", **POOL, variant="ODD"))] == ["ODD", ""]


POOL = {"n": 1, "c": 1, "h": 8, "w": 8, "window": 2}


def test_unknown_names(folder: Path) -> None:
    with pytest.raises(InputError, match="GPU 'abacus' is unknown"):
        OperatorPredictor.load("abacus", folder)
    with pytest.raises(InputError, match=r"library 'torc' is in no fitted operator; .*did you mean torch"):
        OperatorPredictor.load("t4", folder, library="torc")


def test_without_a_bundle_the_roofline_stands() -> None:
    predictor = OperatorPredictor(gpu("t4"), None)
    (found,) = predictor.predict([RELU])
    assert found.time_us == found.lower_us == RELU.roofline_us(predictor.gpu)
    assert found.upper_us > found.time_us
    assert found.source == "roofline"


def test_operator_time_takes_the_shipped_bundle() -> None:
    found = operator_time_us(RELU, "t4")
    assert found.time_us >= RELU.roofline_us(gpu("t4"))
    assert found.source in ("model", "roofline")


def test_random_operators_have_sane_times(folder: Path) -> None:
    random = np.random.default_rng(0)
    predictor = OperatorPredictor.load("v100-pcie-32gb", folder)
    ops: list[Operator] = [
        operator("relu", n=int(n), c=int(c)) for n, c in random.integers(1, 5000, (200, 2))
    ]
    assert all(np.isfinite(one.upper_us) and one.time_us > 0 for one in predictor.predict(ops))


def test_importing_stays_light() -> None:
    """Neither pandas nor xgboost until something is predicted."""
    code = "import sys, surrogate.operators; print('pandas' in sys.modules, 'xgboost' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
