"""``seer train``, ``evaluate``, ``predict`` and ``info`` through the entry point."""

import json

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def bundle(seer, dataset, tmp_path):
    """A trained bundle."""
    path = tmp_path / "bundle"
    result = seer("train", dataset, "--model", "linear-terms", "-o", path)
    assert result.code == 0, result.err
    return path


def test_train_says_its_held_out_errors(seer, dataset, tmp_path):
    result = seer("train", dataset, "--model", "linear-terms", "-o", tmp_path / "b")
    assert "held out by shape" in result.out and "slowdown" in result.out


def test_predict_keeps_rows_columns_and_order_and_adds_five(seer, bundle, table, tmp_path):
    problems = table.drop(columns=["status", "time_us"]).sample(frac=1, random_state=0)
    problems["note"] = np.arange(len(problems))
    problems.to_parquet(tmp_path / "p.parquet")
    result = seer(
        "predict", "--bundle", bundle, "--data", tmp_path / "p.parquet", "-o", tmp_path / "q.parquet"
    )
    assert result.code == 0, result.err
    out = pd.read_parquet(tmp_path / "q.parquet")
    added = ["predicted_us", "lower_us", "upper_us", "in_domain", "supported"]
    assert list(out.columns) == [*problems.columns, *added]
    assert (out["note"].to_numpy() == problems["note"].to_numpy()).all()
    assert ((out.lower_us < out.predicted_us) & (out.predicted_us < out.upper_us)).all()
    assert out["in_domain"].all()
    winograd = out[out.algorithm == "WINOGRAD"]
    assert (winograd.supported == (winograd.r == 3)).all()


def test_predict_without_boosting_agrees_with_the_library(seer, bundle, dataset, tmp_path):
    from surrogate import load
    from surrogate.dataset import read_problems

    seer("predict", "--bundle", bundle, "--data", dataset, "-o", tmp_path / "q.parquet")
    direct = load(bundle).predict(read_problems(dataset))
    np.testing.assert_array_equal(pd.read_parquet(tmp_path / "q.parquet").predicted_us, direct.predicted_us)


def test_evaluate_keeps_seen_and_unseen_apart(seer, bundle, table, tmp_path):
    other = table.assign(c=table.c + 8, k=table.k + 8)
    pd.concat([table, other]).to_parquet(tmp_path / "both.parquet")
    records = seer("evaluate", bundle, tmp_path / "both.parquet", "--json").json
    rows = {(r["part"], r["stratum"]): r["rows"] for r in records}
    ok = int((table.status == "ok").sum())
    assert rows["seen", "all"] == ok and rows["unseen", "all"] == ok


def test_info_shows_the_card(seer, bundle):
    card = seer("info", bundle, "--json").json
    assert card["model"] == "linear-terms"
    assert card["card"]["data"]["gpus"] == ["Tesla T4", "Tesla V100-SXM2-16GB"]
    assert "card.held_out.time.median_ape" in seer("info", bundle).out


def test_a_tampered_bundle_is_refused_before_parsing(seer, bundle, dataset, tmp_path):
    file = bundle / "model" / "coefficients.json"
    file.write_bytes(file.read_bytes().replace(b"0", b"1", 1))
    result = seer("evaluate", bundle, dataset)
    assert result.code == 2 and "differs from its hash" in result.err


def test_a_newer_or_truncated_bundle_is_refused(seer, bundle, dataset):
    index = bundle / "bundle.json"
    content = json.loads(index.read_text())
    index.write_text(json.dumps(content | {"schema": 99}))
    assert "upgrade seer-surrogate" in seer("info", bundle).err
    index.write_text(json.dumps(content)[:100])
    assert "damaged" in seer("info", bundle).err
    index.write_text(json.dumps(content | {"sha256": {"../x": "0" * 64}}))
    assert "outside the bundle" in seer("evaluate", bundle, dataset).err


def test_training_again_replaces_the_bundle_but_never_another_folder(seer, dataset, bundle, tmp_path):
    assert seer("train", dataset, "--model", "linear-dims", "-o", bundle).code == 0
    assert seer("info", bundle, "--json").json["model"] == "linear-dims"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("precious")
    refused = seer("train", dataset, "--model", "linear-dims", "-o", tmp_path / "mine")
    assert refused.code == 2 and (tmp_path / "mine/file").read_text() == "precious"


def test_boosted_bundles_survive_the_disk(seer, dataset, tmp_path):
    from surrogate import load
    from surrogate.bundle import save
    from surrogate.dataset import read_dataset, read_problems
    from surrogate.models.boosted import BoostedTerms
    from surrogate.training import train

    before = train(read_dataset(dataset), model="boosted-terms")
    assert isinstance(before.model, BoostedTerms)
    save(before, tmp_path / "b")
    problems = read_problems(dataset)
    pd.testing.assert_frame_equal(load(tmp_path / "b").predict(problems), before.predict(problems))


def test_models_that_only_rank_cannot_be_trained_to_predict(seer, dataset, tmp_path):
    result = seer("train", dataset, "--model", "always-best-single", "-o", tmp_path / "b")
    assert result.code == 2 and "predicts no time" in result.err
