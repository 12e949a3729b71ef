"""Reading both versions of MIOpen's find-db: hand-written lines and the published tables."""

from pathlib import Path

import pandas as pd

from surrogate.dataset.checks import find_violations
from surrogate.features.families import CONV
from surrogate.features.gpu import canonical
from surrogate.formats import FORMATS
from surrogate.formats.miopen import gpu_of_file
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)

FORWARD = ANSWERS["forward"]
OLD = ANSWERS["old"]


def save(folder: Path, *lines: str, name: str = "gfx90a68.HIP.fdb.txt") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_forward_line_becomes_rows(tmp_path: Path) -> None:
    imported = FORMATS["miopen"].read([save(tmp_path, FORWARD)])
    columns = ["solver", "algorithm", "time_us", "workspace_bytes"]
    assert imported.candidates == "listed" and "mi250" in imported.notes[0]
    first, second = imported.rows[columns].to_numpy().tolist()
    assert (first, second) == (["ConvA", "ImplicitGEMM", 500.0, 1024], ["ConvB", "Winograd", 250.0, 0])
    expected = ANSWERS["test_forward_line_becomes_rows"]["expected"]
    assert imported.rows.iloc[0][list(expected)].to_dict() == expected


def test_backward_line_has_the_sizes_of_its_forward_problem(tmp_path: Path) -> None:
    rows = FORMATS["miopen"].read([save(tmp_path, OLD, name="gfx1030_36.HIP.fdb.txt")]).rows
    expected = ANSWERS["test_backward_line_has_the_sizes_of_its_forward_problem"]["expected"]
    assert rows.iloc[0][list(expected)].to_dict() == expected


def test_repeated_candidates_count_once(tmp_path: Path) -> None:
    """A bias does not change the key, and a second file repeats the first."""
    file = save(tmp_path, FORWARD, FORWARD.replace("-0-NCHW", "-1-NCHW"))
    other = save(tmp_path, FORWARD, name="gfx90a68.OpenCL.fdb.txt")
    imported = FORMATS["miopen"].read([file, other])
    assert imported.rows["backend"].tolist() == ["HIP", "HIP"] and find_violations(imported.rows) == []
    assert "2 left out: algorithm: an earlier row is equal" in imported.notes[0] and "2 repeated" in imported.notes[1]


@cases(__file__)
def test_gpu_is_read_from_the_file_name(name: str, expected: list[str | int | None]) -> None:
    assert list(gpu_of_file(name)) == expected


def test_file_of_an_architecture_says_which_board_it_is_taken_as(refused, tmp_path: Path) -> None:
    imported = FORMATS["miopen"].read([save(tmp_path, FORWARD, name="gfx1030.HIP.fdb.txt")])
    assert set(imported.rows["gpu"]) == {"navi21"} and "others: rx-6900-xt" in imported.notes[0]
    with refused("'gfx90a' fits several", "mi210, mi250, mi250x"):
        FORMATS["miopen"].read([save(tmp_path, FORWARD, name="gfx90a.HIP.fdb.txt")])
    with refused("gfx1201 with 31", "rx-9070-xt has 64"):
        FORMATS["miopen"].read([save(tmp_path, FORWARD, name="gfx1201_31.HIP.fdb.txt")])


@cases(__file__)
def test_invalid_records_are_counted_and_refused_without_a_valid_one(refused, tmp_path, line, why):
    imported = FORMATS["miopen"].read([save(tmp_path, line, FORWARD, line)])
    assert len(imported.rows) == 2 and find_violations(imported.rows) == []
    note = imported.notes[0]
    assert "2 left out: " in note and why in note
    with refused("no measured 2-D problem", why):
        FORMATS["miopen"].read([save(tmp_path, line)])


def test_invalid_candidate_does_not_drop_the_others(tmp_path: Path) -> None:
    rows = FORMATS["miopen"].read([save(tmp_path, FORWARD.replace(":0.5,", ":0,"))]).rows
    assert rows["solver"].tolist() == ["ConvB"]


def test_file_name_without_a_gpu_needs_the_option(refused, tmp_path: Path) -> None:
    path = save(tmp_path, FORWARD, name="mine.ufdb.txt")
    with refused("--gpu"):
        FORMATS["miopen"].read([path])
    rows = FORMATS["miopen"].read([path], gpu="mi210", library_version="6.2").rows
    assert rows["gpu"].unique().tolist() == ["mi210"] and rows["library_version"].unique().tolist() == ["6.2"]
    assert "num_cu" not in rows
    with refused("has the GPU gfx90a_104, not h100-sxm"):
        FORMATS["miopen"].read([save(tmp_path, FORWARD, name="gfx90a68.ufdb.txt")], gpu="h100-sxm")


@cases(__file__)
def test_samples_agree_with_the_published_tables(measurements: Path, sample: str, table: str) -> None:
    rows = FORMATS["miopen"].read([measurements / "raw" / sample]).rows
    key = [*(name for name in CONV.row_key if name != "algorithm"), "solver", "bias"]
    values = ["time_us", "workspace_bytes", "out_h", "out_w", "algorithm", "status", "backend", "fdb_version"]
    published = pd.read_parquet(measurements / table)
    published["gpu"] = published["gpu"].map(canonical)
    published["layout"] = published["layout"].replace("NHWC-NHWC-NHWC", "NHWC")
    key = [name for name in key if name in published]
    both = rows.merge(published[[*key, *values]], on=key, suffixes=("", "_published"))
    assert len(both) == len(rows) > 300
    for column in values:
        assert (both[column] == both[f"{column}_published"]).all(), column
