"""Reading the tables of CUTLASS's profiler. The times are invented."""

from collections.abc import Callable
from pathlib import Path

from surrogate.formats import FORMATS
from surrogate.formats.imported import Imported
from tests.conftest import CommandResult
from tests.formats.conftest import kernel
from tests.known import cases, known_answers

SAMPLE = Path(__file__).parent / "samples" / "cutlass_profiler.csv"
TABLE = SAMPLE.read_text()
NAME = "cutlass_gemm_f16n_f16t_f16n_f32"
ANSWERS = known_answers(__file__)


def read(folder: Path, text: str = TABLE, **options: str) -> Imported:
    (folder / "a.csv").write_text(text)
    return FORMATS["cutlass"].read([folder / "a.csv"], gpu="t4", **options)


def test_tiles_are_parameters_of_a_kernel(tmp_path: Path) -> None:
    imported = read(tmp_path)
    columns = ["m", "n", "k", "dtype", "library", "cta_m", "stages", "inst_m", "status", "time_us"]
    assert imported.rows[columns].fillna(0.0).to_numpy().tolist() == ANSWERS["tiles"]
    described = kernel(imported)
    assert (described["name"], described["sizes"], imported.candidates) == (NAME, ["m", "n", "k"], "listed")
    assert described["formulas"]["bytes"] == "1 * (2 * m * k + 2 * k * n + 2 * m * n)"
    assert described["parameters"]["cta_n"] == [64, 128]


def test_columns_may_have_another_order_and_text_around_them(tmp_path: Path) -> None:
    """The printed output has the table at its end; --tags adds columns before it."""
    lines = [f"tag,{line}".split(",")[::-1] for line in TABLE.splitlines()]
    lines[0] = ["RUNTIME" if cell == "Runtime" else cell for cell in lines[0]]
    text = "Operation: a, b\n\nCSV Results:\n\n" + "\n".join(map(",".join, lines)) + "\n===\n1,2\n"
    imported = read(tmp_path, text)
    first = read(tmp_path)
    assert imported.rows[[*first.rows]].equals(first.rows)
    assert imported.notes == ("left out: 1 row, they do not have the 38 columns of the header",)


def test_results_that_are_wrong_or_not_profiled_have_no_time(tmp_path: Path) -> None:
    text = TABLE.replace("not_verified,success", "incorrect,success", 1).replace(",0.049,", ",0,")
    text += TABLE.splitlines()[-1].replace("2,CUTLASS", "2,cuBLAS").replace(",0.31,", ",0.2,")
    imported = read(tmp_path, text)
    assert imported.rows["status"].tolist() == ["failed", "not_supported", "ok", "ok", "ok"]
    assert imported.rows.iloc[-1][["library", "algorithm", "time_us"]].tolist() == ["cublas", "cublas", 200.0]
    assert imported.notes == ("left out: 1 row, they were not profiled",)


def test_each_kind_of_operation_is_a_kernel(refused, tmp_path: Path) -> None:
    with refused("choose with --name: cutlass_conv2d_fprop_f32_nhwc_f32_nhwc_f32_nhwc, " + NAME):
        read(tmp_path, ANSWERS["convolution"] + TABLE)
    imported = read(tmp_path, ANSWERS["convolution"])
    assert imported.rows[["n", "c", "k", "cta_m", "time_us"]].to_numpy().tolist() == [[34, 128, 64, 128, 4500.0]]
    assert "formulas" not in kernel(imported)


@cases(__file__)
def test_wrong_tables_are_refused(refused, tmp_path: Path, old: str, new: str, message: str) -> None:
    with refused("a.csv", message):
        read(tmp_path, TABLE.replace(old, new))


def test_bundle_of_a_profile_chooses_a_tile(tmp_path: Path, seer: Callable[..., CommandResult]) -> None:
    data, bundle = tmp_path / "data.parquet", tmp_path / "bundle"
    assert "give --gpu" in seer("import", "cutlass", SAMPLE, "-o", data).err
    assert seer("import", "cutlass", SAMPLE, "--gpu", "t4", "-o", data).code == 0
    assert seer("data", "check", data).code == 0
    assert seer("train", data, "-o", bundle).code == 0
    chosen = seer("select", "--bundle", bundle, "--gpu", "t4", "m1024n1024k1024").out
    assert chosen.splitlines()[2].split()[:4] == ["cutlass_tensorop_s1688gemm_128x64", "128", "64", "49"]
