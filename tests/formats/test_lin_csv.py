"""Reading GEMM timings from CSV."""

from pathlib import Path

import pytest

from surrogate.formats import FORMATS

HEADER = "kernel_name,kernel_runtime,batch_size,M,N,K"
ROW = '"volta_sgemm_128x64_nn(float*, int)",345.5,1,1024,1024,2048'


def read(folder: Path, *lines: str, **options: str):
    path = folder / "fully_connected_forward.csv"
    path.write_text("\n".join(lines) + "\n")
    return FORMATS["lin-csv"].read([path], **{"gpu": "v100-sxm2-16gb", **options})


def test_rows_belong_to_the_gemm_family(tmp_path: Path) -> None:
    """Kernels of one problem are repeats, so their median counts."""
    repeat = ROW.replace("345.5", "365.5")
    imported = read(tmp_path, HEADER + ",run", ROW + ",3", "", repeat + ",5", "sgemm,2,8,64,32,16,4")
    assert "us" in imported.notes[0] and imported.candidates == "listed"
    kind = imported.rows[["family", "operator", "library", "dtype"]].drop_duplicates()
    assert kind.to_numpy().tolist() == [["gemm", "gemm", "cublas", "fp32"]]
    assert imported.rows[["batch", "m", "n", "k", "time_us", "repeats", "gpu", "run"]].to_numpy().tolist() == [
        [1, 1024, 1024, 2048, 355.5, 2, "v100-sxm2-16gb", "3"],
        [8, 64, 32, 16, 2.0, 1, "v100-sxm2-16gb", "4"],
    ]
    assert imported.rows["kernel_name"].tolist() == ["volta_sgemm_128x64_nn(float*, int)", "sgemm"]


@pytest.mark.parametrize("row", ["sgemm;1.345,5;1;1.024;1024;2048", 'sgemm,"1,345.5",1,"1,024",1024,2048'])
def test_numbers_of_other_locales_are_read(tmp_path: Path, row: str) -> None:
    header = HEADER.replace(",", ";") if ";" in row else HEADER
    assert read(tmp_path, header, row).rows[["m", "time_us"]].to_numpy().tolist() == [[1024, 1345.5]]


def test_times_in_a_wrong_unit_are_refused(refused, tmp_path: Path) -> None:
    in_ms, in_ns = ROW.replace("345.5", "0.3455"), "sgemm,345500000,1,2048,2048,2048"
    with refused("TFLOP/s; if they are in ms"):
        read(tmp_path, HEADER, in_ms)
    with refused("in ns"):
        read(tmp_path, HEADER, in_ns)
    assert read(tmp_path, HEADER, in_ms, time_unit="ms").rows["time_us"].tolist() == [pytest.approx(345.5)]
    with refused("time unit 'min' is unknown"):
        read(tmp_path, HEADER, ROW, time_unit="min")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([HEADER.replace("runtime", "runtim"), ROW], "kernel_runtim"),
        ([HEADER], "no rows"),
        ([HEADER, ROW, ROW + ",7"], "line 3"),
        ([HEADER, ROW.replace("345.5", "n/a")], "line 2: kernel_runtime is 'n/a'"),
        ([HEADER, ROW.replace("345.5", "0")], "line 2: kernel_runtime is '0'"),
        ([HEADER, ROW.replace("2048", "2.5")], "K is 2.5"),
    ],
)
def test_wrong_files_are_refused(refused, tmp_path: Path, lines: list[str], message: str) -> None:
    with refused("fully_connected_forward.csv", message):
        read(tmp_path, *lines)
