"""``seer tune`` and ``seer train --params`` through the entry point."""

import json

from tests.known import cases
from tests.tuning.made_up import PARAMETERS, SHAPES, times


def test_tune_prints_settings_and_writes_what_train_uses(seer, dataset, tmp_path):
    best = tmp_path / "best é.json"
    words = ["--storage", tmp_path / "j", "--model", "linear-terms", "--trials", 6]
    result = seer("tune", dataset, *words, "-o", best).succeeded()
    assert result.out.splitlines()[0].split() == ["setting", "best", "stored", "importance"]
    assert "stored settings" in result.out and f"seer train --params {best}" in result.out
    again = seer("tune", dataset, *words, "--json").json
    written = json.loads(best.read_text())
    assert written["params"] == again["params"] and written["model"] == "linear-terms"
    assert again["trials"]["complete"] + again["trials"]["pruned"] == 6
    assert again["value"] <= again["stored_value"]
    assert seer("train", dataset, "--params", best, "-o", tmp_path / "b").code == 0
    assert json.dumps(written["params"]) in json.dumps(seer("info", tmp_path / "b", "--json").json)


def test_csv_has_a_row_per_setting(seer, dataset, tmp_path):
    words = ["--storage", tmp_path / "j", "--model", "linear-dims", "--trials", 1, "--csv"]
    lines = seer("tune", dataset, *words).out.splitlines()
    assert lines == ["setting,best,stored,importance", "alpha,1.0,1.0,"]


def test_the_default_model_of_a_described_kernel_is_not_tuned(seer, tmp_path):
    times(SHAPES[:2], ("v100-sxm2-16gb",)).to_csv(tmp_path / "own.csv", index=False)
    names = ["--sizes", "m,n", "--parameters", ",".join(PARAMETERS)]
    result = seer("tune", tmp_path / "own.csv", *names, "--trials", 1, "--storage", tmp_path / "j")
    assert result.is_refusal("configurations, has no settings to tune; use `seer train`"), result.err


@cases(__file__)
def test_an_invalid_settings_file_is_refused(seer, dataset, tmp_path, content, message):
    path = tmp_path / "p.json"
    path.write_text(content)
    result = seer("train", dataset, "--params", path, "-o", tmp_path / "b")
    assert result.is_refusal(message), result.err


def test_params_conflicts_with_other_options(seer, dataset, tmp_path):
    path = tmp_path / "p.json"
    path.write_text('{"model": "linear-terms", "params": {"alpha": 2}}')
    words = ["train", dataset, "--params", path, "-o", tmp_path / "b"]
    assert "leave --model out" in seer(*words, "--model", "linear-dims").err
    assert "use one of them" in seer(*words, "--tune", 2).err
    assert seer(*words, "--model", "linear-terms").code == 0
    assert "cannot be read" in seer("train", dataset, "--params", tmp_path, "-o", tmp_path / "b").err
