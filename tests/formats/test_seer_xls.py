"""Reading SEER's workbooks in every layout of the original."""

from pathlib import Path
from typing import Any

import pytest
import xlwt

from surrogate.dataset.columns import names
from surrogate.features.errors import InputError
from surrogate.formats import FORMATS
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)

PROBLEM = ["batch_size", "in_chan", "in_wid", "out_chan", "out_wid", "ker_wid", "stride", "padding"]
COUNTERS = ANSWERS["counters"]
VARIANT = [*PROBLEM, "algo", "time", *COUNTERS]
A = [128, 64, 56, 128, 54, 3, 1, 0]
B = [128, 256, 14, 512, 12, 3, 1, 0]
A_COUNTS = [2.5e8, 1.2e6, 3.4e5, 240, 46656, 195, 9, 3]
B_COUNTS = [7.5e8, 2.2e6, 4.4e5, 240, 9216, 39, 4, 10]


def save(path: Path, **sheets: list[list[Any]]) -> Path:
    """Write an .xls file with the given rows per sheet; the first row is the header."""
    book = xlwt.Workbook()
    for name, rows in sheets.items():
        sheet = book.add_sheet(name)
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                sheet.write(i, j, value)
    book.save(str(path))
    return path


def read(*paths: Path, **options: Any):
    return FORMATS["seer-xls"].read(paths, **{"gpu": "titan-xp", **options})


def variant(folder: Path, name: str, *train: list[Any], test: tuple[list[Any], ...] = ()) -> Path:
    """Write a variant's workbook with these rows in its sheets ``train`` and ``test``."""
    header = [*VARIANT, "type"][: len(train[0])]
    return save(folder / f"{name}.xls", train=[header, *train], test=[header, *test])


def test_variant_workbook_becomes_rows_and_kernels(tmp_path: Path) -> None:
    """The original drops the nineteenth column and recomputes the waves."""
    train, test = [*A, 0, 5.5, *A_COUNTS, -1], [*B, 0, 2.25, *B_COUNTS[:5], 0, 4, 10, -1]
    imported = read(variant(tmp_path, "algo0_32x32", train, test=(test,)))
    rows, kernels = imported.rows, imported.kernels
    assert imported.candidates == "all" and kernels is not None
    expected = ANSWERS["test_variant_workbook_becomes_rows_and_kernels"]["expected"]
    assert rows.iloc[0][list(expected)].to_dict() == expected
    assert rows[["time_us", "seer_part"]].to_numpy().tolist()[1] == [2250.0, "test"]
    assert set(names("kernels", required=True)) <= set(kernels)
    columns = ANSWERS["test_variant_workbook_becomes_rows_and_kernels"]["columns"]
    counted = ANSWERS["test_variant_workbook_becomes_rows_and_kernels"]["counted"]
    assert kernels[columns].to_numpy().tolist() == counted


@cases(__file__)
def test_algorithm_comes_from_the_numbering_and_tile_from_the_file_name(
    tmp_path, name, row, numbering, algorithm, tile
):
    imported = read(variant(tmp_path, name, row), numbering=numbering)
    assert imported.kernels is not None and imported.kernels["tile"].tolist() == [tile]
    assert imported.rows[["algorithm", "time_us"]].to_numpy().tolist() == [[algorithm, 5500.0]]


def test_pre_kernels_add_to_the_time_of_their_algorithm(tmp_path: Path) -> None:
    main = variant(tmp_path, "algo2_32x32", [*A, 2, 5.5, *A_COUNTS])
    pre = variant(tmp_path, "algo2_pre", [*A, 2, 0.75])
    only_main, both, only_pre = read(main), read(pre, main), read(pre)
    assert only_main.rows["time_us"].tolist() == [5500.0]
    assert any("GEMM" in note and "main kernel" in note for note in only_main.notes)
    assert both.rows["time_us"].tolist() == [6250.0] and both.notes == ()
    assert both.kernels is not None
    kernels = both.kernels[["kernel_index", "kernel_name", "time_us"]].to_numpy().tolist()
    assert kernels == [[0, "algo2_32x32", 5500.0], [1, "algo2_pre", 750.0]]
    assert only_pre.rows.empty and only_pre.kernels is not None
    assert only_pre.kernels["time_us"].tolist() == [750.0]


def test_fft_tiling_classes_become_kernels_without_a_time(tmp_path: Path) -> None:
    kernels = read(variant(tmp_path, "algo5-ctree", [*A, 5, 2], test=([*B, 5, 0],))).kernels
    assert kernels is not None and kernels["kernel_class"].tolist() == [2, 0]
    assert kernels["time_us"].isna().all()


PICK = [*PROBLEM, *[f"time_algo{i}" for i in range(8)], "best_real", "best_cudnn"]
PICK_TIMES = [5.5, 4.25, 9.0, 0, 7.0, 6.0, 3.0, -1]


@pytest.mark.parametrize("columns", [16, 18])
def test_algorithm_pick_workbook_becomes_eight_rows(tmp_path: Path, columns: int) -> None:
    row = [*A, *PICK_TIMES, 6, 1]
    imported = read(save(tmp_path / "Algo-pick-set.xls", test=[PICK[:columns], row[:columns]]))
    rows = imported.rows
    assert len(rows) == 8 and imported.kernels is None
    assert rows["algorithm"].tolist()[5:] == ["FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"]
    assert rows["status"].tolist() == ["ok", "ok", "ok", "failed", "ok", "ok", "ok", "failed"]
    assert rows["time_us"].dropna().tolist() == [5500, 4250, 9000, 7000, 6000, 3000]
    expected = {"IMPLICIT_PRECOMP_GEMM"} if columns == 18 else {None}
    assert set(rows["heuristic_algorithm"].where(rows["heuristic_algorithm"].notna(), None)) == expected
    assert rows["algorithm"].is_unique


OTHER = ["op_type", *PROBLEM, "run_time", *[f"optional{i}" for i in range(1, 7)]]


@cases(__file__)
def test_other_operators_become_rows_of_their_families(tmp_path, name, row, shared, passes):
    path = save(tmp_path / f"Other-ops-{name}.xls", new=[OTHER[: len(row)], row])
    imported = read(path)
    expected = [{"gpu": "titan-xp", "dtype": "fp32", **shared, **columns} for columns in passes]
    assert imported.rows[list(expected[0])].to_dict("records") == expected
    assert not imported.rows.empty and imported.candidates == "listed" and imported.kernels is None


@cases(__file__)
def test_wrong_workbooks_are_refused(refused, tmp_path, name, sheets, message):
    path = save(tmp_path / f"{name}.xls", **sheets)
    with refused(str(path), message):
        read(path)


def test_wrong_options_and_mixed_workbooks_are_refused(tmp_path: Path) -> None:
    main = variant(tmp_path, "algo0_32x32", [*A, 0, 5.5, *A_COUNTS])
    other = save(tmp_path / "Other-ops-conv_1x1.xls", less128=[OTHER[:10], [0, *A, 1.5]], larger128=[OTHER[:10]])
    text = tmp_path / "a.xls"
    text.write_text("batch,C,W\n")
    assert len(read(other).rows) == 1
    for paths, options, message in (
        ((main,), {"numbering": "enums"}, "did you mean enum"),
        ((main, other), {}, "import them separately"),
        ((text,), {}, "an Excel workbook"),
        ((main,), {"gpu": None}, "give gpu"),
    ):
        with pytest.raises(InputError, match=message):
            read(*paths, **options)


def test_repeated_row_counts_once(tmp_path: Path) -> None:
    imported = read(variant(tmp_path, "algo0_32x32", [*A, 0, 5.5, *A_COUNTS], [*A, 0, 6.5, *A_COUNTS]))
    assert imported.rows["time_us"].tolist() == [5500.0]
    assert imported.kernels is not None and len(imported.kernels) == 1
    assert any("1 repeated measurement" in note for note in imported.notes)


def test_xlsx_workbook_is_read_with_openpyxl(refused, tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is optional")
    book = openpyxl.Workbook()
    book.active.title = "train"
    for row in ([*VARIANT], [*A, 0, 5.5, *A_COUNTS]):
        book.active.append(row)
    book.save(tmp_path / "algo0_32x32.xlsx")
    assert read(tmp_path / "algo0_32x32.xlsx").rows["time_us"].tolist() == [5500.0]
    with refused("unpacks to"):
        read(tmp_path / "algo0_32x32.xlsx", max_bytes=8000)
