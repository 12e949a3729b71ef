"""``seer export`` through the entry point."""

import json
import re

import pytest


@pytest.fixture
def problems(table, tmp_path):
    """Return the file of the table's problems on one GPU."""
    table[table["gpu"] == "Tesla T4"].to_csv(tmp_path / "t4.csv", index=False)
    return tmp_path / "t4.csv"


def test_export_writes_each_format(seer, trained, problems, tmp_path):
    """JSON and a C header are written from a cuDNN bundle; problems of other families are left out."""
    words = ["export", trained, "--problems", problems, "--gpu", "t4", "-o"]
    result = seer(*words, tmp_path / "p.json", "--as", "json").succeeded()
    table = json.loads((tmp_path / "p.json").read_text())
    assert len(table["picks"]) == 32 and "picks of 32 problems" in result.out
    result = seer(*words, tmp_path / "p.h", "--as", "c-header").succeeded()
    assert "#ifndef SEER_" in (tmp_path / "p.h").read_text()
    mixed = tmp_path / "mixed.txt"
    mixed.write_text("n8c64h28w28k64r3s3p1\ngemm:m128n128k128\n")
    result = seer("export", trained, "--problems", mixed, "--gpu", "t4", "-o", tmp_path / "m.json", "--as", "json")
    assert "picks of 1 problem; 1 left out" in result.out
    for row in ("m,n,k,gpu\n8,8,8,l40s\n", '{"problem": "gemm:m8n8k8", "gpu": "l40s"}\n'):
        mixed.write_text(row)
        for form in ("json", "python", "c-header"):
            words = ["h100", "--problems", mixed, "--as", form, "-o", tmp_path / "other"]
            assert seer("export", *words).is_refusal("line", "l40s", "h100-sxm is requested")


def test_an_exported_function_reports_its_size_and_slowdown(seer, trained, problems, tmp_path):
    """The summary gives the number of leaves and the predicted slowdown."""
    words = ["export", trained, "--problems", problems, "--gpu", "t4", "-o", tmp_path / "select.py"]
    result = seer(*words, "--as", "python", "--leaves", "3").succeeded()
    slowdown = r"leaves: [123], predicted slowdown on the listed problems: 1\.\d+"
    assert re.search(rf"picks of 32 problems; 96 repeated; {slowdown}", result.out)
    text = (tmp_path / "select.py").read_text()
    assert "Bundle: bundle, model linear-terms" in text and "import" not in text


def test_a_file_names_the_bundle_that_answered_and_its_caveats(seer, tmp_path):
    """Times from the datasheet are marked in the header and on standard error."""
    (tmp_path / "p.txt").write_text("n32c256h14k256r3p1\n")
    (tmp_path / "g.txt").write_text("gemm:m128n256k512\n")
    for name, found in (
        ("g", ("interpolated-terms, fitted on gemm", "(model): 1")),
        ("p", ("cudnn_conv", "(datasheet): 1")),
    ):
        words = ["--problems", tmp_path / f"{name}.txt", "--dtype", "fp16", "--as", "c-header", "-o", tmp_path / "p.h"]
        assert found[1] in seer("export", "h100", *words).succeeded().err
        assert all(text in (tmp_path / "p.h").read_text() for text in found)
