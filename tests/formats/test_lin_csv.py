"""Reading GEMM timings from CSV."""

from pathlib import Path

import pytest

from surrogate.formats import FORMATS
from tests.known import cases, known_answers

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
    columns = ["batch", "m", "n", "k", "time_us", "repeats", "gpu", "run"]
    assert imported.rows[columns].to_numpy().tolist() == known_answers(__file__)["products"]
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


@cases(__file__)
def test_wrong_files_are_refused(refused, tmp_path: Path, lines: list[str], old: str, new: str, message: str) -> None:
    """The words HEADER and ROW stand for such lines; ``new`` replaces ``old`` in them."""
    texts = [line.replace("HEADER", HEADER).replace("ROW", ROW) for line in lines]
    with refused("fully_connected_forward.csv", message):
        read(tmp_path, *(text.replace(old, new) if old else text for text in texts))
