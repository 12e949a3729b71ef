"""Tests of bundles: several families, saving and loading, refusal of damaged files, and evaluation."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate import bundled
from surrogate.bundle.bundle import INDEX, Bundle, index_file, load, save
from surrogate.bundle.train import train
from surrogate.dataset.checks import normalise
from surrogate.models.json_types import input_error_if_damaged
from surrogate.prediction.evaluate import evaluate
from tests.known import cases
from tests.prediction.problems import predicted
from tests.tables import every

Table = Callable[..., pd.DataFrame]


@pytest.fixture(scope="module")
def mixed(table: Table) -> pd.DataFrame:
    """Return convolutions, two libraries' matrix products, and softmax in one table."""
    factor, speed = {"Tesla T4": 1.0, "TITAN Xp": 0.7, "Tesla V100-SXM2-16GB": 0.5}, {"cublas": 1.0, "cutlass": 1.2}
    products = every(gpu=factor, library=speed, m=(16, 128, 1024), n=range(256, 4096, 512))
    work_us = products["m"] * products["n"] * 512 * products["library"].map(speed) / 2e6
    products = products.assign(k=512, time_us=(5 + work_us) * products["gpu"].map(factor))
    products = products.assign(library_version="1", family="gemm", operator="gemm", status="ok")
    softmax = every(n=(32, 256, 2048), c=range(64, 4096, 256)).assign(family="rowwise", operator="softmax", status="ok")
    softmax = softmax.assign(gpu="Tesla T4", library="torch", library_version="2")
    softmax["time_us"] = 8 + softmax["n"] * softmax["c"] / 3e4
    return pd.concat([table(12, noise=0.02), products, softmax], ignore_index=True)


@pytest.fixture(scope="module")
def bundle(mixed: pd.DataFrame) -> Bundle:
    return train(mixed, model="linear-terms")


def test_an_interrupted_training_reuses_its_finished_fits(table: Table, tmp_path: Path) -> None:
    def stop(done: int, total: int, text: str) -> None:
        if "fold 3" in text:
            raise KeyboardInterrupt

    rows, options = table(12, noise=0.02), {"model": "linear-terms", "keep": tmp_path / "fits"}
    with pytest.raises(KeyboardInterrupt):
        train(rows, progress=stop, **options)
    kept = {path: path.stat().st_mtime_ns for path in options["keep"].iterdir()}
    assert train(rows, **options).card == train(rows, model="linear-terms").card
    finished = {path: path.stat().st_mtime_ns for path in options["keep"].iterdir()}
    assert 0 < len(kept) < len(finished) and kept.items() <= finished.items()


def test_train_needs_only_gpu_sizes_algorithm_and_time(seer: Callable[..., Any], table: Table, tmp_path: Path) -> None:
    rows = table(12, gpus=("a100-sxm4-40gb",), noise=0.02)
    own, sizes = tmp_path / "own.csv", ["n", "c", "h", "k", "r"]
    measured = rows[rows["status"] == "ok"].drop_duplicates([*sizes, "algorithm"])
    measured[["gpu", *sizes, "algorithm", "time_us"]].to_csv(own, index=False)
    seer("train", own, "--model", "linear-terms", "-o", tmp_path / "B").succeeded()
    problem = "n{n}c{c}h{h}k{k}r{r}".format(**measured.iloc[0])
    words = ("select", "--bundle", tmp_path / "B", "--gpu", "a100-sxm4-40gb", problem, "--json")
    answer = json.loads(seer(*words).succeeded().out)
    assert (answer["source"], answer["library_version"], answer["notes"]) == ("model", "", [])


def test_one_bundle_holds_several_families(mixed: pd.DataFrame, bundle: Bundle) -> None:
    assert list(bundle.family_models) == ["conv", "gemm", "rowwise"]
    assert set(bundle.card["held_out"]) == set(bundle.family_models)
    assert bundle.card["data"]["families"]["gemm"]["algorithms"] == ["default"]
    frame = normalise(mixed, "test")
    answers = predicted(bundle, frame)
    ok = (frame["status"] == "ok").to_numpy()
    error = np.abs(np.log(answers["predicted_us"] / frame["time_us"]))[ok]
    assert np.median(error) < 0.2
    assert answers["in_domain"][ok].all() and answers["supported"][ok].all()
    assert (answers["lower_us"] <= answers["predicted_us"])[ok].all()
    # Two libraries' kernels of one product are candidates of one choice.
    choice = bundle.card["held_out"]["gemm"]["choice"]["all"]
    assert choice["n"] == 3 * 3 * 8 and choice["slowdown_macro"] < 1.05


def test_a_loaded_bundle_predicts_as_the_saved_one(mixed: pd.DataFrame, bundle: Bundle, tmp_path: Path) -> None:
    save(bundle, tmp_path / "bündel b")
    again = load(tmp_path / "bündel b")
    frame = normalise(mixed, "test")
    pd.testing.assert_frame_equal(predicted(again, frame), predicted(bundle, frame))
    assert again.to_dict() == json.loads(json.dumps(bundle.to_dict())) and again.call_costs == bundle.call_costs
    kinds = {path.suffix for path in (tmp_path / "bündel b").rglob("*") if path.is_file()}
    assert kinds <= {".json", ".ubj", ".npy", ".npz"}


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in bundled.FOLDER.glob(f"*/{INDEX}")), ids=lambda p: p.name
)
def test_shipped_files_are_rewritten_byte_for_byte(folder: Path) -> None:
    shipped, index = load(folder), json.loads((folder / INDEX).read_text())
    for name, part in shipped.family_models.items():
        for file, content in (("support", part.support), ("widths", part.widths), ("domain", part.domain)):
            assert content.to_json() == (folder / name / f"{file}.json").read_bytes()
        assert sorted(key.name for key in part.candidates) == index["parts"][name]["candidates"]


def test_a_bundle_of_solvers_is_rewritten_byte_for_byte(tmp_path: Path) -> None:
    """Hashes of archives are excluded: their compression differs between versions of zlib."""
    shipped, again = bundled.FOLDER / "mi300x", tmp_path / "again"
    save(load(shipped), again)
    paths = list(shipped.rglob("*.json"))
    assert len(paths) > 1
    for path in paths:
        texts = [(folder / path.relative_to(shipped)).read_text("utf-8") for folder in (shipped, again)]
        assert len({re.sub(r'(\.npz": )"[0-9a-f]{64}"', r"\1", text) for text in texts}) == 1


def test_seen_and_unseen_shapes_are_evaluated_separately(mixed: pd.DataFrame, bundle: Bundle, table: Table) -> None:
    records = evaluate(bundle, mixed)
    by_key = {(r["family"], r["part"], r["stratum"]): r for r in records}
    assert by_key["gemm", "unseen", "all"]["rows"] == 0 and by_key["gemm", "seen", "all"]["rows"] == 144
    assert by_key["conv", "seen", "ungrouped"]["rows"] < by_key["conv", "seen", "all"]["rows"]
    new = evaluate(bundle, table(24, noise=0.02))
    unseen = next(r for r in new if (r["part"], r["stratum"]) == ("unseen", "all"))
    assert unseen["rows"] > 0 and unseen["problems"] > 0
    assert 0 < unseen["interval_coverage"] <= 1


def test_unsuitable_training_data_is_refused(refused, table: Table, mixed: pd.DataFrame) -> None:
    with refused("one shape"):
        train(table(1), model="linear-terms")
    with refused("status ok"):
        train(table(2).assign(status="failed"), model="linear-terms")
    with refused("baseline"):
        train(table(2), model="forest")
    with refused("no setting 'depth'"):
        train(table(2), model="linear-terms", params={"depth": 3})
    lone = mixed[(mixed["operator"] != "softmax") | (mixed["c"] == 64)].reset_index(drop=True)
    fitted = train(lone, model="linear-terms")
    assert fitted.card["training"]["left_out"] == ["rowwise"] and "rowwise" not in fitted.family_models
    with refused("has no rowwise"):
        evaluate(fitted, mixed)


@cases(__file__)
def test_a_damaged_bundle_is_refused_in_one_line(refused, bundle, tmp_path, file, text, word) -> None:
    """``text`` replaces the file's content; a table replaces entries of the index, whose hash is recomputed."""
    save(bundle, tmp_path / "b")
    path = tmp_path / "b" / file
    if isinstance(text, str):
        path.write_text(text)
    elif isinstance(text, list):
        path.write_bytes(path.read_bytes().replace(*map(str.encode, text), 1))
    elif text is None:
        path.unlink()
    else:
        path.write_bytes(index_file(_merged(json.loads(path.read_text()), text)))
    with refused(word):
        load(tmp_path / "b")


def _merged(index: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return index | {key: _merged(index[key], v) if isinstance(v, dict) else v for key, v in changes.items()}


def test_the_error_names_a_missing_package(refused) -> None:
    with refused("needs pyarrow", "pip install pyarrow"), input_error_if_damaged("the measured times"):
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")


def test_save_replaces_only_a_bundle_and_keeps_it_if_writing_fails(refused, bundle, tmp_path, monkeypatch) -> None:
    (tmp_path / "mine").mkdir()
    with refused("not a bundle"):
        save(bundle, tmp_path / "mine")
    save(bundle, tmp_path / "b")

    def fail(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with refused("No space left"):
        save(bundle, tmp_path / "b")
    monkeypatch.undo()
    load(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "mine"]
