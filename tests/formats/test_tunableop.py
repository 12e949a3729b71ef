"""Reading PyTorch's TunableOp results, as aten/src/ATen/cuda/tunable writes them. The times are invented."""

import gzip
from pathlib import Path
from typing import Any

from surrogate.formats import FORMATS
from surrogate.formats.imported import Imported
from tests.known import cases, known_answers

SAMPLE = Path(__file__).parent / "samples" / "tunableop_results0.csv"
HEAD = known_answers(__file__)["head"]
COLUMNS = ["operator", "dtype", "math", "variant", "batch", "m", "n", "k", "library", "library_version", "time_us"]


def read(folder: Path, text: str, **options: str) -> Imported:
    (folder / "a.csv").write_text(text, newline="\r\n")
    return FORMATS["tunableop"].read([folder / "a.csv"], **options)


@cases(__file__)
def test_each_operator_is_read(tmp_path: Path, operator: str, signature: str, rest: str, expected: list[Any]) -> None:
    (row,) = read(tmp_path, f"{HEAD}{operator},{signature},{rest}").rows[COLUMNS].to_numpy().tolist()
    assert row == [*expected[:5], 8, 4, 2, *expected[5:], 500.0]


def test_lines_without_a_measurement_are_counted(tmp_path: Path) -> None:
    product, untuned = "GemmTunableOp_double_NN,nn_8_4_2,Default", "GemmTunableOp_float_NN,nn_8_4_2"
    others = [f"{product},{time}" for time in ("inf", "0", "x")] + [product, untuned, f"{untuned},BLAS_PARAMS: M"]
    others += ["GemmTunableOp_c10::complex<float>_NN,nn_8_4_2,Default,1", "GemmTunableOp_float_NN,nn_8_4,Default,1"]
    imported = read(tmp_path, HEAD + "\n".join([f"{product},0.25", f"{product},0.75", *others]))
    assert imported.rows[["gpu", "time_us", "repeats"]].to_numpy().tolist() == [["mi100", 500.0, 2]]
    assert sorted(note.split()[2] for note in imported.notes) == ["1", "1", "6"]
    assert imported.candidates == "listed"
    rows = "".join(f"{product.replace('8_4_2', f'8_4_2_ld_{ld}')},{t}\n" for ld, t in (("8_2_8", 1), ("9_2_8", 3)))
    imported = read(tmp_path, HEAD + rows)
    assert (imported.rows["time_us"].tolist(), len(imported.notes)) == ([1000.0], 1)


@cases(__file__)
def test_wrong_files_are_refused(refused, tmp_path: Path, old: str, new: str, options: Any, message: str) -> None:
    with refused("a.csv", message):
        read(tmp_path, (HEAD + "GemmTunableOp_float_NN,nn_8_4_2,Default,0.5").replace(old, new), **options)


def test_import_command_needs_the_board_of_a_shared_architecture(tmp_path, seer):
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(SAMPLE.read_bytes()))
    assert "is taken as rx-7900-xtx" in seer("import", "tunableop", SAMPLE, "-o", tmp_path / "a.csv").err
    run = seer("import", "tunableop", SAMPLE, tmp_path / "b.csv.gz", "--gpu", "7900xtx", "-o", tmp_path / "a.csv")
    assert (run.code, "2 rows" in run.out, "2 lines" in run.err) == (0, True, True)
