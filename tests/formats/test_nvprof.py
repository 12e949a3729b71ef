"""nvprof logs in each of its printed forms."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from surrogate.features.errors import InputError
from surrogate.formats import FORMATS
from surrogate.formats.imported import Imported
from surrogate.formats.nvprof import SIZE_BYTES, TIME_US, metric, scaled

TRACE = """\
==4242== NVPROF is profiling process 4242, command: ./conv
loading ops, done
==4242== Profiling application: ./conv
==4242== Profiling result:
"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Registers Per Thread","Static SMem",\
"Dynamic SMem","Size","Throughput","SrcMemType","DstMemType","Device","Context","Stream","Name","Correlation_ID"
ms,us,,,,,,,,KB,B,MB,GB/s,,,,,,,
465.87,26.016,,,,,,,,,,0.25,9.38,"Pageable","Device","TITAN Xp (0)","1","7","[CUDA memcpy HtoD]",129
466.21,4.992,64,2,1,256,1,1,16,1.5,2048,,,,,"TITAN Xp (0)","1","7","void im2col<float, 4>(int, float*) [130]",130
467.5,1250.5,512,1,3,128,2,1,128,0.5,0,,,,,"TITAN Xp (0)","1","7","maxwell_sgemm_128x64_nn [131]",131
"""
METRICS = """\
==77== NVPROF is profiling process 77, command: ./conv
==77== Profiling result:
"Device","Context","Stream","Kernel","inst_fp_32","dram_read_transactions","dram_utilization",\
"single_precision_fu_utilization","achieved_occupancy","dram_read_throughput","sm_efficiency"
"TITAN Xp (0)","1","7","void im2col<float, 4>(int, float*)",1000,250,"Mid (5)","Low (1)",0.5,"199.4GB/s","99.3%"
"TITAN Xp (0)","1","7","maxwell_sgemm_128x64_nn",4000000,90000,"High (8)","Max (10)",0.25,"512MB/s","98%"
"""
TEXT = """\
==4242== NVPROF is profiling process 4242, command: ./conv
==4242== Profiling result:
   Start  Duration            Grid Size      Block Size     Regs*    SSMem*    DSMem*      Size  Throughput  SrcMemType\
  DstMemType           Device   Context    Stream  Name
465.87ms  26.016us                    -               -         -         -         -  256.00KB  9.3842GB/s    Pageable\
      Device     TITAN Xp (0)         1         7  [CUDA memcpy HtoD]
466.21ms  4.9920us             (64 2 1)       (256 1 1)        16  1.5000KB  2.0000KB         -           -           -\
           -     TITAN Xp (0)         1         7  void im2col<float, 4>(int, float*) [130]
467.50ms  1.2505ms            (512 1 3)       (128 2 1)       128      512B        0B         -           -           -\
           -     TITAN Xp (0)         1         7  maxwell_sgemm_128x64_nn [131]

Regs: Number of registers used per CUDA thread.
SSMem: Static shared memory allocated per CUDA block.
"""
TEXT_METRICS = """\
==77== Profiling result:
          Device   Context    Stream                Kernel  inst_fp_32  dram_read_transactions  dram_utilization
    TITAN Xp (0)         1         7  void im2col<float, 4        1000                     250           Mid (5)
    TITAN Xp (0)         1         7  maxwell_sgemm_128x64     4000000                   90000          High (8)
"""
AVERAGES = """\
==9== Metric result:
"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"
"TITAN Xp (0)","maxwell_sgemm_128x64_nn",2,"inst_fp_32","FP Instructions(Single)",10,30,20
"TITAN Xp (0)","maxwell_sgemm_128x64_nn",2,"dram_utilization","Device Memory Utilization","Low (1)","Low (3)","Low (2)"
"TITAN Xp (0)","never_launched",1,"inst_fp_32","FP Instructions(Single)",1,1,1
"""
TEXT_AVERAGES = """\
==9== Metric result:
Invocations                 Metric Name              Metric Description         Min         Max         Avg
Device "TITAN Xp (0)"
    Kernel: maxwell_sgemm_128x64_nn
          2                  inst_fp_32         FP Instructions(Single)          10          30          20
          2            dram_utilization       Device Memory Utilization     Low (1)     Low (3)     Low (2)
"""


def read(folder: Path, *texts: str, **options: Any) -> Imported:
    paths = []
    for index, text in enumerate(texts):
        paths.append(folder / f"log{index}.csv")
        paths[-1].write_text(text)
    return FORMATS["nvprof"].read(paths, **options)


def kernels(imported: Imported) -> pd.DataFrame:
    assert imported.table == "launches" and imported.rows.empty and imported.kernels is not None
    return imported.kernels


@pytest.mark.parametrize("log", [TRACE, TEXT])
def test_trace(tmp_path: Path, log: str) -> None:
    imported = read(tmp_path, log)
    frame = kernels(imported)
    assert imported.notes[0] == "log0.csv: 1 memory operation left out"
    assert frame["kernel_name"].tolist() == ["void im2col<float, 4>(int, float*)", "maxwell_sgemm_128x64_nn"]
    assert frame["gpu"].tolist() == ["TITAN Xp", "TITAN Xp"]
    columns = [
        "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread", "static_shared_bytes",
        "dynamic_shared_bytes", "time_us", "blocks",
    ]  # fmt: skip
    assert frame[columns].to_numpy().tolist() == [
        pytest.approx([64, 2, 1, 256, 1, 1, 16, 1536, 2048, 4.992, 128]),
        pytest.approx([512, 1, 3, 128, 2, 1, 128, 512, 0, 1250.5, 1536]),
    ]
    assert frame["start_us"].tolist() == [466210, 467500]


def test_units_row_varies_by_file(tmp_path: Path) -> None:
    other = TRACE.replace("ms,us,,,,,,,,KB,B", "s,ms,,,,,,,,B,KB")
    frame = kernels(read(tmp_path, other, gpu="titan-xp"))
    assert frame.iloc[1][["gpu", "time_us", "static_shared_bytes"]].tolist() == ["titan-xp", 1250500.0, 0.0]
    assert frame.loc[0, "dynamic_shared_bytes"] == 2048 * 1024


def test_text_with_a_copied_documents_indent(tmp_path: Path) -> None:
    indented = "\n".join("      " + line for line in TEXT.splitlines())
    assert len(kernels(read(tmp_path, indented))) == 2


@pytest.mark.parametrize("metrics", [METRICS, TEXT_METRICS])
def test_metrics_join_the_trace_launch_by_launch(tmp_path: Path, metrics: str) -> None:
    frame = kernels(read(tmp_path, TRACE, metrics))
    assert frame["time_us"].tolist() == [4.992, 1250.5]
    assert frame["fp32_instructions"].tolist() == [1000, 4_000_000]
    assert frame["dram_read_transactions"].tolist() == [250, 90_000]
    assert frame["dram_utilization_pct"].tolist() == [50, 80]
    assert frame["kernel_name"].tolist()[1] == "maxwell_sgemm_128x64_nn"


def test_metrics_alone_with_their_units(tmp_path: Path) -> None:
    frame = kernels(read(tmp_path, METRICS))
    assert frame["fp32_utilization_pct"].tolist() == [10, 100]
    assert frame["achieved_occupancy_pct"].tolist() == [50, 25]
    assert frame["dram_read_throughput_gbs"].tolist() == [199.4, 0.512]
    assert frame["sm_efficiency_pct"].tolist() == [99.3, 98]
    assert frame["time_us"].isna().all()


def test_metrics_of_another_program_are_not_joined(tmp_path: Path) -> None:
    imported = read(tmp_path, TRACE, METRICS.replace("im2col", "col2im"))
    assert kernels(imported)["fp32_instructions"].isna().all()
    assert any("not joined" in note for note in imported.notes)


@pytest.mark.parametrize("averages", [AVERAGES, TEXT_AVERAGES])
def test_averages_join_by_name(tmp_path: Path, averages: str) -> None:
    imported = read(tmp_path, TRACE, averages)
    frame = kernels(imported)
    assert frame["fp32_instructions"].tolist()[1] == 20 and pd.isna(frame["fp32_instructions"].tolist()[0])
    assert frame["dram_utilization_pct"].tolist()[1] == 20
    assert ("never_launched" in averages) == any("1 kernel not joined" in note for note in imported.notes)


def test_problems_make_dataset_rows(tmp_path: Path) -> None:
    listed = tmp_path / "prof-ops-algo2.txt"
    listed.write_text("1\n128\t64\t56\t128\t0\t3\t1\t0\t2\n")
    slower = TRACE.replace("1250.5", "1350.5")
    imported = read(tmp_path, TRACE, METRICS, slower, problems=listed, kernel="sgemm", library_version="7.6")
    row = imported.rows.iloc[0]
    assert len(imported.rows) == 1 and imported.table == "problems"
    assert row[["gpu", "library_version", "algorithm", "status", "h", "repeats"]].tolist() == [
        "TITAN Xp", "7.6", "GEMM", "ok", 56, 2,
    ]  # fmt: skip
    assert row[["time_us", "time_us_min", "time_us_max"]].tolist() == [1300.5, 1250.5, 1350.5]
    assert imported.kernels is not None
    assert imported.kernels.iloc[0][["kernel_index", "blocks", "fp32_instructions"]].tolist() == [
        0,
        1536,
        4_000_000,
    ]
    with pytest.raises(InputError, match=r"1 problem, but run 1 has 2 matching launches; .*--kernel"):
        read(tmp_path, TRACE, problems=listed)
    with pytest.raises(InputError, match="not a regular expression"):
        read(tmp_path, TRACE, problems=listed, kernel="(")
    with pytest.raises(InputError, match="metrics but no times"):
        read(tmp_path, METRICS, problems=listed, kernel="sgemm")
    listed.write_text("1\n128\t64\t56\t128\t0\t3\t1\t0\n")
    with pytest.raises(InputError, match="names no algorithm"):
        read(tmp_path, TRACE, problems=listed, kernel="sgemm")


def test_output_of_the_program_inside_the_table_is_left_out(tmp_path: Path) -> None:
    imported = read(tmp_path, TRACE.replace("\n467.5", "\ndone 50 %\n467.5"))
    assert len(kernels(imported)) == 2
    assert "1 line left out that nvprof did not print" in imported.notes[1]


def test_two_processes_in_one_file(tmp_path: Path) -> None:
    assert len(kernels(read(tmp_path, TRACE + TRACE.replace("ms,us", "ms,ms")))) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no launch and no metric.*--print-gpu-trace"),
        ("hello\nworld\n", "no launch and no metric"),
        ('"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n', "a summary by kernel name"),
        ("==1== Error: ERR_NVGPUCTRPERM - no permission\n", "not permitted to count.*NVreg"),
        (TRACE.replace("ms,us,,,,,,,,KB,B,MB,GB/s,,,,,,,\n", ""), "no row of units"),
        (TRACE.replace("4.992", "fast"), "line 8: 'fast us'; a number with a unit"),
        (TRACE.replace(",1.5,2048", ",1.5,1e400"), "line 8: '1e400 B'; a number with a unit"),
        (TRACE.replace(",64,2,1", ",64.5,2,1"), "line 8: '64.5'; a whole number"),
        ("SQLite format 3\0", "nvprof's own database; export it"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)


def test_values() -> None:
    assert scaled("2.4e+03s", "", TIME_US, "x") == pytest.approx(2.4e9)
    assert scaled("912ns", "", TIME_US, "x") == pytest.approx(0.912)
    assert round(scaled("1.1152KB", "", SIZE_BYTES, "x")) == 1142
    assert metric("dram_utilization", "Low (1)") == ("dram_utilization_pct", 10.0)
    assert metric("dram_utilization", "Idle (0)") == ("dram_utilization_pct", 0.0)
    assert metric("ipc", "1.25") == ("ipc", 1.25)
    assert pd.isna(metric("inst_fp_32", "<OVERFLOW>")[1])
