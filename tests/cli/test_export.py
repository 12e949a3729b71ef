"""``seer export`` through the entry point."""

import json

import pytest


def test_every_format(seer, trained, dataset, tmp_path):
    """JSON and C from a cuDNN bundle; a find-db is refused in one line."""
    words = ["export", trained, "--problems", dataset, "--gpu", "t4", "-o"]
    result = seer(*words, tmp_path / "p.json", "--as", "json")
    assert result.code == 0, result.err
    table = json.loads((tmp_path / "p.json").read_text())
    assert len(table["picks"]) == 32 and "picks of 32 problems" in result.out
    result = seer(*words, tmp_path / "p.h", "--as", "c-header")
    assert result.code == 0, result.err
    assert "#ifndef SEER_" in (tmp_path / "p.h").read_text()
    refused = seer(*words, tmp_path / "x", "--as", "miopen-user-db")
    assert refused.is_refusal("needs a bundle fitted on MIOpen"), refused.err
    assert not (tmp_path / "x").exists()
    mixed = tmp_path / "mixed.txt"
    mixed.write_text("n8c64h28w28k64r3s3p1\ngemm:m128n128k128\n")
    result = seer("export", trained, "--problems", mixed, "--gpu", "t4", "-o", tmp_path / "m.json", "--as", "json")
    assert "picks of 1 problem; 1 left out" in result.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--as", "json", "--gpu", "t4", "--workspace-limit", "much"], "not readable"),
        (["--as", "json", "--gpu", "nonesuch"], "unknown"),
        (["--as", "json"], "several GPUs"),
    ],
)
def test_user_errors_are_one_line(seer, trained, dataset, tmp_path, words, said):
    result = seer("export", trained, "--problems", dataset, *words, "-o", tmp_path / "out")
    assert result.is_refusal(said), result.err
    assert not (tmp_path / "out").exists()
