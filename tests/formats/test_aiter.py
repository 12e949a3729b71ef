"""Reading aiter's tables of tuned kernels: rows of AMD's columns with invented times."""

from collections.abc import Callable
from pathlib import Path

import pytest

from surrogate.formats import FORMATS
from surrogate.formats.imported import Imported
from tests.conftest import CommandResult
from tests.known import cases, known_answers

GEMM, EXPERTS = (known_answers(__file__)[name] for name in ("gemm", "experts"))


def read(folder: Path, text: str, name: str = "tuned.csv", **options: str) -> Imported:
    (folder / name).write_text(text)
    return FORMATS["aiter"].read([folder / name], **options)


def test_fastest_row_of_a_size_counts_and_a_time_of_zero_does_not(tmp_path: Path) -> None:
    imported = read(tmp_path, GEMM, dtype="fp8_block")
    columns = ["gpu", "library", "operator", "dtype", "batch", "m", "n", "k", "algorithm", "maker", "time_us"]
    assert imported.rows[columns].to_numpy().tolist() == known_answers(__file__)["fastest_rows"]
    assert imported.candidates == "listed"
    assert any("a time of 0" in note for note in imported.notes)
    assert any("no registered GPU" in note for note in imported.notes)


def test_experts_have_the_time_of_both_kernels(tmp_path: Path) -> None:
    """Experts in mxfp8 have no element type here."""
    imported = read(tmp_path, EXPERTS)
    columns = ["operator", "dtype", "variant", "tokens", "hidden", "inter", "experts", "topk", "tensor_parallel"]
    assert imported.rows[[*columns, "time_us"]].to_numpy().tolist() == known_answers(__file__)["expert_rows"]
    doubt = "GPU gfx950_256 is taken as mi355x, its commonest board; others: mi350x"
    assert imported.notes == (doubt, "left out: 1 row, the package has no such element type")


@pytest.mark.parametrize(("lost", "gpu"), [("", "mi325x"), ("gfx942,", "mi300x"), ("gfx942,", "gfx942:304")])
def test_rows_of_another_board_are_counted(refused, tmp_path: Path, lost: str, gpu: str) -> None:
    text = GEMM.replace("gfx,", "") if lost else GEMM
    for each in ("gfx942,", "gfx950,", "gfx777,") if lost else ():
        text = text.replace(each, "")
    imported = read(tmp_path, text, dtype="fp8", gpu=gpu)
    assert imported.rows[["gpu", "time_us"]].to_numpy().tolist() == [[gpu.replace("gfx942:304", "mi300x"), 20.9]]
    assert any(note.startswith("left out: 2 rows, they are of another board") for note in imported.notes)
    with refused("no measurement", "of another board than mi210"):
        read(tmp_path, text, dtype="fp8", gpu="mi210")


@cases(__file__)
def test_element_type_is_in_a_column_or_in_the_file_name(tmp_path, name, column, value, expected):
    header, *lines = GEMM.splitlines()
    table = [f"{header},{column}", *(f"{line},{value}" for line in lines)] if column else [header, *lines]
    rows = read(tmp_path, "\n".join(table), name).rows
    assert len(rows) == 2 and set(rows["dtype"]) == {expected}


@cases(__file__)
def test_wrong_tables_are_refused(refused, tmp_path: Path, old: str, new: str, message: str) -> None:
    with refused("tuned.csv", message):
        read(tmp_path, GEMM.replace(old, new) if old else GEMM, **({"dtype": "fp8"} if old else {}))


def test_import_command_takes_board_and_element_type(tmp_path: Path, seer: Callable[..., CommandResult]) -> None:
    """A file without the columns of the board needs --gpu."""
    path, out = tmp_path / "own.csv", tmp_path / "own.parquet"
    path.write_text("M,N,K,us\n8,1024,2048,7.5\n")
    run = seer("import", "aiter", path, "--gpu", "mi308x", "--dtype", "fp8", "-o", out)
    assert (run.code, "1 row" in run.out + run.err) == (0, True)
    assert seer("import", "aiter", path, "--gpu", "mi308x", "--dtype", "fp7", "-o", out).code == 2
