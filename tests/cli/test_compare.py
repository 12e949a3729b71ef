"""``seer compare`` and ``seer report`` through the entry point."""

import json
import re

import pytest

MODELS = "always-best-single,roofline,linear-dims,linear-terms"


@pytest.fixture
def without_figures(monkeypatch):
    """Leave figures out of reports, because they take most of the time of a small comparison."""
    monkeypatch.setattr("surrogate.report.figures.draw", lambda *run: ({}, {"slowdowns": "left out"}))


@pytest.mark.usefixtures("without_figures")
def test_compare_writes_results_tables_and_report(seer, dataset, tmp_path):
    out = tmp_path / "out"
    result = seer("compare", dataset, "--models", MODELS, "--folds", 4, "-o", out).succeeded()
    written = {"results.json", "predictions.parquet", "choices.parquet", "folds.csv", "report.html", "time_rows.csv"}
    assert written <= {path.name for path in out.iterdir()}
    results = json.loads((out / "results.json").read_text())
    assert {row["model"] for row in results["choice_rows"]} == {*MODELS.split(","), "cudnn-heuristic", "oracle"}
    oracle = [row for row in results["choice_rows"] if row["model"] == "oracle"]
    assert all(row["slowdown_macro"] == 1.0 for row in oracle)
    assert "linear-terms" in result.out and str(out / "report.html") in result.out
    page = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    assert seer("report", out).code == 0
    assert (out / "report.html").read_bytes() == page


@pytest.mark.usefixtures("without_figures")
def test_json_and_csv_have_every_row_left_by_where(seer, dataset, tmp_path):
    words = ["compare", dataset, "--models", "roofline", "--folds", 2, "--where", "gpu=Tesla T4"]
    as_json = seer(*words, "--json", "-o", tmp_path / "a").json
    assert as_json["schema"] == 2 and as_json["dataset"]["candidates"] == "all"
    assert as_json["dataset"]["gpus"] == ["Tesla T4"] and as_json["dataset"]["where"] == ["gpu=Tesla T4"]
    as_csv = seer(*words, "--csv", "-o", tmp_path / "b").out
    assert {"model", "stratum", "gpu", "slowdown_macro"} <= set(as_csv.splitlines()[0].split(","))
    assert len(as_csv.splitlines()) == len(as_json["choice_rows"]) + 1


@pytest.mark.parametrize(
    ("column", "value", "message"), [("c", -16, "c is -16; it must be between 1"), ("gpu", "T4-0x", "is unknown")]
)
def test_an_invalid_table_is_refused_in_one_line(seer, table, tmp_path, column, value, message):
    path, out = tmp_path / "bad.parquet", tmp_path / "out"
    table[:1].assign(**{column: value}).to_parquet(path)
    result = seer("compare", path, "--models", "roofline", "-o", out)
    assert result.is_refusal(message), result.err
    assert not out.exists()


@pytest.mark.usefixtures("without_figures")
def test_repeated_model_options_are_merged(seer, dataset, tmp_path):
    words = ["--models", "linear-dims", "--models", "roofline, linear-dims", "--by", "network", "--folds", 2, "--json"]
    result = seer("compare", dataset, *words, "-o", tmp_path / "out").succeeded()
    models = dict.fromkeys(row["model"] for row in result.json["choice_rows"])
    assert list(models) == ["linear-dims", "roofline", "cudnn-heuristic", "oracle"]
    assert {row["split"] for row in result.json["choice_rows"]} == {"network"}


@pytest.mark.usefixtures("without_figures")
def test_an_interrupted_run_reports_progress_and_resumes(seer, dataset, tmp_path, monkeypatch):
    words = ["compare", dataset, "--models", "roofline,linear-dims", "--folds", 2, "--seeds", 1, "-o", tmp_path / "out"]
    seer(*words)
    results = tmp_path / "out" / "results.json"
    before = results.read_bytes()

    def stop(*parts, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("surrogate.models.linear.LinearDims.predict", stop)
        stopped = seer(*words)
    assert stopped.code == 130
    assert re.search(r"after [1-4] of 4 fits; the same command resumes the comparison", stopped.err)
    assert results.read_bytes() == before
    assert seer(*words).code == 0
    assert not (tmp_path / "out" / ".fits").exists()


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("names", [("thesis.tex",), ("results.json", "thesis.tex"), ("report.html",)])
def test_a_folder_of_other_files_is_not_overwritten(seer, dataset, tmp_path, names):
    out = tmp_path / "mine"
    out.mkdir()
    for name in names:
        (out / name).write_text("mine")
    words = ["compare", dataset, "--models", "roofline", "--folds", 2, "--seeds", 1, "-o", out]
    result = seer(*words)
    assert result.is_refusal(names[-1]) and "--force" in result.err, result.err
    assert {path.name for path in out.iterdir()} == set(names)
    assert all((out / name).read_text() == "mine" for name in names)
    assert seer(*words, "--force").code == 0
    if "thesis.tex" in names:
        assert (out / "thesis.tex").read_text() == "mine"


@pytest.mark.usefixtures("without_figures")
def test_an_earlier_report_is_overwritten(seer, dataset, tmp_path):
    words = ["compare", dataset, "--folds", 2, "--seeds", 1, "-o", tmp_path / "out"]
    seer(*words, "--models", "roofline").succeeded()
    (tmp_path / "out" / ".fits").mkdir()  # left by an interrupted run
    seer(*words, "--models", "linear-dims").succeeded()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert "linear-dims" in results["settings"] and "roofline" not in results["settings"]


@pytest.mark.usefixtures("without_figures")
def test_without_data_partly_measured_networks_are_also_trained_on(seer, tmp_path):
    words = ["compare", "--models", "roofline", "--folds", 2, "--seeds", 1, "--json", "-o", tmp_path / "out"]
    results = seer(*words).json
    assert results["dataset"]["name"] == "cudnn_forward.parquet"
    assert results["dataset"]["also_train"] == ["cudnn_partial.parquet"]
