"""``seer import`` end to end."""

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from surrogate.cli.import_ import command
from surrogate.dataset.store import read_dataset
from surrogate.features.errors import InputError
from surrogate.formats import FORMATS

LINE = (
    "64-56-56-3x3-32-56-56-16-1x1-1x1-1x1-0-NCHW-FP32-F="
    "ConvA:0.5,1024,miopenConvolutionFwdAlgoImplicitGEMM;ConvB:0.25,0,miopenConvolutionFwdAlgoWinograd\n"
)
TRACE = """\
"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Registers Per Thread","Static SMem",\
"Dynamic SMem","Device","Context","Stream","Name"
ms,us,,,,,,,,KB,B,,,,
466.21,4.992,64,2,1,256,1,1,16,1.5,2048,"TITAN Xp (0)","1","7","sgemm [130]"
"""


def run(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_miopen_becomes_a_listed_dataset(tmp_path: Path) -> None:
    source, target = tmp_path / "gfx90a68.HIP.fdb.txt", tmp_path / "mi210.parquet"
    source.write_text(LINE)
    assert f"{target}: 2 rows, candidates listed" in run("miopen", source, "-o", target)
    dataset = read_dataset(target)
    assert dataset.candidates == "listed"
    assert dataset.frame["solver"].tolist() == ["ConvA", "ConvB"]


def test_profiler_rows_come_with_their_kernels(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "ops.txt").write_text("1\n128 64 56 128 0 3 1 0 1\n")
    target = tmp_path / "xp.parquet"
    output = run(
        "nvprof", tmp_path / "trace.csv", "--problems", tmp_path / "ops.txt", "-o", target, "--quiet"
    )
    assert output.splitlines()[1] == f"{tmp_path / 'xp.kernels.parquet'}: 1 kernel"
    assert read_dataset(target).frame["time_us"].tolist() == [4.992]
    assert pd.read_parquet(tmp_path / "xp.kernels.parquet")["static_shared_bytes"].tolist() == [1536]


def test_launches_without_problems_are_a_kernel_table(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    target = tmp_path / "launches.parquet"
    assert "table 'launches'" in run("nvprof", tmp_path / "trace.csv", "-o", target, "--gpu", "titan-xp")
    assert pd.read_parquet(target)["gpu"].tolist() == ["titan-xp"]


def test_a_wrong_file_leaves_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "gfx90a68.HIP.fdb.txt"
    source.write_text("hello\n")
    with pytest.raises(InputError, match="no find-db record"):
        run("miopen", source, "-o", tmp_path / "out.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name]


def test_no_output_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"-o DATA.parquet"):
        run("miopen", tmp_path / "x")


def test_help_names_every_format_and_how(tmp_path: Path) -> None:
    text = run("--help")
    assert all(name in text and each.summary in text for name, each in FORMATS.items())
    assert "opt/rocm" in run("miopen", "--how")
