"""SEER's workbooks, written here in every shape that the original writes."""

from pathlib import Path
from typing import Any

import pytest
import xlwt

from surrogate.dataset.columns import names
from surrogate.features.errors import InputError
from surrogate.formats import FORMATS

PROBLEM = ["batch_size", "in_chan", "in_wid", "out_chan", "out_wid", "ker_wid", "stride", "padding"]
COUNTERS = [
    "inst_fp_32", "dram_read_transactions", "dram_write_transactions", "#block-max", "#block-launch", "#iter",
    "single_precision_fu_utilization", "dram_utilization",
]  # fmt: skip
VARIANT = [*PROBLEM, "algo", "time", *COUNTERS]
A = [128, 64, 56, 128, 54, 3, 1, 0]
B = [128, 256, 14, 512, 12, 3, 1, 0]
A_COUNTS = [2.5e8, 1.2e6, 3.4e5, 240, 46656, 195, 9, 3]
B_COUNTS = [7.5e8, 2.2e6, 4.4e5, 240, 9216, 39, 4, 10]


def save(path: Path, **sheets: list[list[Any]]) -> Path:
    """An .xls file with the given rows (the first is the header) per sheet."""
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


def test_variant_with_the_nineteenth_column(tmp_path: Path) -> None:
    path = save(
        tmp_path / "algo0_32x32.xls",
        train=[[*VARIANT, "type"], [*A, 0, 5.5, *A_COUNTS, -1]],
        test=[[*VARIANT, "type"], [*B, 0, 2.25, *B_COUNTS, -1]],
    )
    imported = read(path)
    assert imported.candidates == "all"
    rows, kernels = imported.rows, imported.kernels
    assert rows["time_us"].tolist() == [5500.0, 2250.0]
    assert rows["seer_part"].tolist() == ["train", "test"]
    assert rows.iloc[0][["gpu", "library", "direction", "dtype", "math", "layout", "algorithm", "status"]].tolist() == [
        "titan-xp", "cudnn", "fwd", "fp32", "fma", "NCHW", "IMPLICIT_GEMM", "ok",
    ]  # fmt: skip
    assert rows.iloc[0][["n", "c", "h", "w", "k", "r", "s", "pad_h", "stride_w", "groups"]].tolist() == [
        128, 64, 56, 56, 128, 3, 3, 0, 1, 1,
    ]  # fmt: skip
    assert kernels is not None and set(names("kernels", required=True)) <= set(kernels)
    assert kernels["tile"].tolist() == ["32x32", "32x32"]
    assert kernels["waves"].tolist() == [195, 39]
    assert kernels["b_max"].tolist() == [240, 240]
    assert kernels["fp32_utilization_pct"].tolist() == [90, 40]
    assert kernels["dram_utilization_pct"].tolist() == [30, 100]
    assert kernels["fp32_instructions"].tolist() == [2.5e8, 7.5e8]
    assert kernels["dram_write_transactions"].tolist() == [3.4e5, 4.4e5]


def test_variant_without_the_nineteenth_column_and_waves_computed_anew(tmp_path: Path) -> None:
    counts = [*A_COUNTS]
    counts[5] = 0  # the original computes the waves again, whatever the file says
    path = save(tmp_path / "algo1_128x64.xls", train=[VARIANT, [*A, 1, 5.5, *counts]], test=[VARIANT])
    imported = read(path)
    assert imported.kernels is not None and imported.kernels["waves"].tolist() == [195]
    assert imported.rows["algorithm"].tolist() == ["IMPLICIT_PRECOMP_GEMM"]


def test_fft_has_ten_columns(tmp_path: Path) -> None:
    header = VARIANT[:10]
    path = save(tmp_path / "algo4_64.xls", train=[header, [*A, 4, 3.5]], test=[header, [*B, 4, 1.25]])
    imported = read(path)
    assert imported.rows["algorithm"].tolist() == ["FFT", "FFT"]
    assert imported.kernels is not None and imported.kernels["blocks"].isna().all()


def test_winograd_tile_and_readme_numbering(tmp_path: Path) -> None:
    path = save(tmp_path / "algo4_148.xls", train=[VARIANT, [*A, 4, 5.5, *A_COUNTS]], test=[VARIANT])
    imported = read(path, numbering="readme")
    assert imported.rows["algorithm"].tolist() == ["WINOGRAD"]
    assert imported.kernels is not None and imported.kernels["tile"].tolist() == ["1x4x8"]
    assert read(path).rows["algorithm"].tolist() == ["FFT"]


def test_the_wrong_numbering_is_noticed_where_the_row_is_impossible(tmp_path: Path) -> None:
    seven_wide = [128, 64, 56, 128, 50, 7, 1, 0]
    path = save(tmp_path / "algo6_64.xls", train=[VARIANT[:10], [*seven_wide, 6, 3.5]], test=[VARIANT[:10]])
    with pytest.raises(InputError, match=r"sheet 'train', row 2: a time for WINOGRAD.*numbering"):
        read(path)
    assert read(path, numbering="readme").rows["algorithm"].tolist() == ["FFT"]


def test_pre_kernels_add_to_their_algorithms_time(tmp_path: Path) -> None:
    main = save(tmp_path / "algo2_32x32.xls", train=[VARIANT, [*A, 2, 5.5, *A_COUNTS]], test=[VARIANT])
    pre = save(tmp_path / "algo2_pre.xls", train=[VARIANT[:10], [*A, 2, 0.75]], test=[VARIANT[:10]])
    alone, both = read(main), read(pre, main)
    assert alone.rows["time_us"].tolist() == [5500.0]
    assert any("GEMM" in note and "main kernel" in note for note in alone.notes)
    assert both.rows["time_us"].tolist() == [6250.0] and both.notes == ()
    assert both.kernels is not None
    assert both.kernels[["kernel_index", "kernel_name", "time_us"]].to_numpy().tolist() == [
        [0, "algo2_32x32", 5500.0],
        [1, "algo2_pre", 750.0],
    ]
    only_pre = read(pre)
    assert only_pre.rows.empty and only_pre.table == "launches"
    assert only_pre.kernels is not None and only_pre.kernels["time_us"].tolist() == [750.0]


def test_fft_tiling_classes_are_kernels_without_a_time(tmp_path: Path) -> None:
    path = save(
        tmp_path / "algo5-ctree.xls", train=[VARIANT[:10], [*A, 5, 2]], test=[VARIANT[:10], [*B, 5, 0]]
    )
    imported = read(path)
    assert imported.kernels is not None and imported.kernels["kernel_class"].tolist() == [2, 0]
    assert imported.kernels["time_us"].isna().all()


def test_single_sheet_of_measured_rows_is_a_test_part(tmp_path: Path) -> None:
    path = save(tmp_path / "conv-test-set-II.xls", Sheet1=[VARIANT[:10], [*A, 1, 5.5]])
    assert read(path).rows["seer_part"].tolist() == ["test"]


PICK = [*PROBLEM, *[f"time_algo{i}" for i in range(8)], "best_real", "best_cudnn"]
PICK_TIMES = [5.5, 4.25, 9.0, 0, 7.0, 6.0, 3.0, -1]


@pytest.mark.parametrize("columns", [16, 18])
def test_pick(tmp_path: Path, columns: int) -> None:
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


def test_pick_with_a_wrong_best_is_told(tmp_path: Path) -> None:
    path = save(tmp_path / "Algo-pick-set.xls", test=[PICK, [*A, *PICK_TIMES, 0, -1]])
    imported = read(path)
    assert any("1 problem" in note for note in imported.notes)
    assert imported.rows["heuristic_algorithm"].isna().all()


OTHER = ["op_type", *PROBLEM, "run_time", *[f"optional{i}" for i in range(1, 7)]]
IMAGE = {"n": 128, "c": 64, "h": 56, "w": 56}
WINDOW = {"window": 3, "window_w": 3, "stride": 1, "stride_w": 1, "pad": 0, "pad_w": 0}
SAME = [8, 64, 56, 64, 28, 3, 2, 1]
"""TensorFlow's padding of 3 × 3 at stride 2: one row and column in all, which one of each side gives too."""


@pytest.mark.parametrize(
    ("name", "row", "shared", "passes"),
    [
        (
            "maxpool", [0, *A, 2.5, 4.0, 0, 0, 0, 0, 0], {"family": "pool", "library": "tensorflow", **IMAGE, **WINDOW},
            [{"operator": "max_pool", "time_us": 2500.0}, {"operator": "max_pool_backward", "time_us": 4000.0}],
        ),
        ("avgpool", [0, *SAME, 2.5, -1], {"pad": 1, "stride": 2}, [{"operator": "avg_pool", "time_us": 2500.0}]),
        (
            "conv_1x1", [0, *A[:5], 1, 1, 0, 1.5],
            {"family": "conv", "library": "cudnn", "library_version": "7.x", **IMAGE, "k": 128, "r": 1},
            [{"direction": "fwd", "algorithm": "default", "time_us": 1500.0}],
        ),
        (
            "data_layout", [128, 64, 56, 64, 56, 0, 0, 0, 0, 0.5], {"family": "pointwise", **IMAGE},
            [{"operator": "layout_transform", "time_us": 500.0}],
        ),
        ("layout", [0, 128, 64, 56, 64, 56, 3, 1, 0, 0.5], IMAGE, [{"operator": "layout_transform"}]),
        (
            "conv_grad", [0, *A, 2.0, 3.0, 5.0, 8.0, 1.5, 2.5, 0], {"family": "conv", **IMAGE, "k": 128, "pad_h": 0},
            [
                {"direction": "fwd", "time_us": 2000.0}, {"direction": "bwd_data", "time_us": 3000.0},
                {"direction": "bwd_filter", "time_us": 5000.0},
            ],
        ),
    ],
)  # fmt: skip
def test_other_operators_are_rows_of_their_families(
    tmp_path: Path, name: str, row: list[Any], shared: dict[str, Any], passes: list[dict[str, Any]]
) -> None:
    path = save(tmp_path / f"Other-ops-{name}.xls", new=[OTHER[: len(row)], row])
    imported = read(path)
    expected = [{"gpu": "titan-xp", "dtype": "fp32", **shared, **each} for each in passes]
    assert imported.rows[list(expected[0])].to_dict("records") == expected
    assert imported.table == "problems" and imported.candidates == "listed" and imported.kernels is None


def test_one_sheet_of_conv_1x1_may_be_empty(tmp_path: Path) -> None:
    path = save(
        tmp_path / "Other-ops-conv_1x1.xls", less128=[OTHER[:10], [0, *A, 1.5]], larger128=[OTHER[:10]]
    )
    assert len(read(path).rows) == 1


@pytest.mark.parametrize(
    ("name", "sheets", "message"),
    [
        ("algo0_32x32", {"train": [VARIANT, [*A, 0, "fast", *A_COUNTS]]}, r"row 2, column 10: 'fast'"),
        ("algo0_32x32", {"train": [VARIANT, [*A, 0, 5.5, *A_COUNTS[:-1]]]}, r"row 2, column 18: empty"),
        ("algo0_32x32", {"train": [VARIANT, [*A, 9, 5.5, *A_COUNTS]]}, r"algorithm 9; .*0 to 7"),
        ("algo0_32x32", {"train": [VARIANT, [*A[:4], 50, *A[5:], 0, 5.5, *A_COUNTS]]}, r"out width 50; .*54"),
        ("algo0_32x32", {"train": [VARIANT, [*A, 0, 5.5, *A_COUNTS[:-1], 11]]}, r"dram utilisation 11"),
        ("algo0_32x32", {"train": [VARIANT[:12], [*A, 0, 5.5, 1, 2]]}, r"12 columns; a variant has 18"),
        ("algo0_32x32", {"train": [VARIANT], "test": [VARIANT]}, r"no rows under its header"),
        ("algo0_32x32", {"train": [VARIANT], "old": [VARIANT]}, r"sheet 'old'; .*train and test"),
        ("Algo-pick-set", {"test": [PICK, [*A, *PICK_TIMES, 8, 1]]}, r"column 17: algorithm 8"),
        ("Other-ops-maxpol", {"new": [OTHER, [0, *A, 2.5]]}, r"did you mean maxpool"),
        ("Other-ops-maxpool", {"new": [OTHER[:9], [0, *A]]}, r"9 columns; maxpool needs 11"),
        ("Other-ops-conv_1x1", {"new": [OTHER[:10], [0, *A, 0]]}, r"row 2: time 0 ms"),
        (
            "Other-ops-maxpool",
            {"new": [OTHER[:11], [0, *A[:5], 2, 1, 1, 2.5, 4]]},
            r"row 2: padding 1 in all",
        ),
    ],
)
def test_wrong_workbooks_are_refused_in_one_line(
    tmp_path: Path, name: str, sheets: dict[str, list[list[Any]]], message: str
) -> None:
    path = save(tmp_path / f"{name}.xls", **sheets)
    with pytest.raises(InputError, match=message) as refused:
        read(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_unknown_numbering_and_mixed_kinds(tmp_path: Path) -> None:
    variant = save(tmp_path / "algo0_32x32.xls", train=[VARIANT, [*A, 0, 5.5, *A_COUNTS]])
    other = save(tmp_path / "Other-ops-conv_1x1.xls", less128=[OTHER[:10], [0, *A, 1.5]])
    with pytest.raises(InputError, match=r"numbering 'enums' is unknown.*did you mean enum"):
        read(variant, numbering="enums")
    with pytest.raises(InputError, match="by themselves"):
        read(variant, other)


def test_repeated_rows_count_once(tmp_path: Path) -> None:
    path = save(
        tmp_path / "algo0_32x32.xls", train=[VARIANT, [*A, 0, 5.5, *A_COUNTS], [*A, 0, 6.5, *A_COUNTS]]
    )
    imported = read(path)
    assert imported.rows["time_us"].tolist() == [5500.0]
    assert imported.kernels is not None and len(imported.kernels) == 1
    assert any("1 repeated measurement" in note for note in imported.notes)


def test_xlsx_where_openpyxl_is_installed(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is optional")
    book = openpyxl.Workbook()
    book.active.title = "train"
    for row in ([*VARIANT], [*A, 0, 5.5, *A_COUNTS]):
        book.active.append(row)
    book.save(tmp_path / "algo0_32x32.xlsx")
    assert read(tmp_path / "algo0_32x32.xlsx").rows["time_us"].tolist() == [5500.0]
    with pytest.raises(InputError, match="unpacks to"):
        read(tmp_path / "algo0_32x32.xlsx", max_bytes=8000)


def test_no_workbook(tmp_path: Path) -> None:
    (tmp_path / "a.xls").write_text("batch,C,W\n")
    with pytest.raises(InputError, match="an Excel workbook"):
        read(tmp_path / "a.xls")
    with pytest.raises(InputError, match="give --gpu"):
        FORMATS["seer-xls"].read([tmp_path / "a.xls"])
