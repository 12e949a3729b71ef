"""Reading aiconfigurator: small parquet files in its folder layout, with invented times."""

import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from surrogate.dataset.store import read_dataset
from surrogate.features.families import family
from surrogate.formats import FORMATS
from surrogate.formats.aiconfigurator import with_peer_access
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)

COMMON = {"framework": "SGLang", "version": "x", "device": "NVIDIA H100 80GB HBM3", "kernel_source": "k"}
MIXTRAL = {"num_tokens": 64, "hidden_size": 6144, "inter_size": 16384, "topk": 2, "num_experts": 8}
MIXTRAL |= {"moe_ep_size": 1, "moe_dtype": "bfloat16"}
GEMM = {"gemm_dtype": "bfloat16", "n": 256, "k": 512}


def table(root: Path, place: str, name: str, rows: int = 1, **columns: Any) -> None:
    """Write a table at ``GPU/FAMILY/FRAMEWORK/VERSION``; single values fill ``rows`` rows."""
    path = root / place / f"{name}_perf.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(COMMON | columns, index=range(rows)).to_parquet(path)


def gemm(root: Path, place: str, **columns: Any) -> None:
    """Write a table of matrix products with one row per m."""
    table(root, place, "gemm", len(columns["m"]), **GEMM | columns)


def read(root: Path, family: str = "gemm", **options: Any):
    return FORMATS["aiconfigurator"].read([root], family=family, **options)


def only(root: Path, family: str) -> dict[str, Any]:
    """Return the only row of a family."""
    (row,) = read(root, family).rows.to_dict("records")
    return row


def test_gemm_row_has_its_time_in_microseconds(tmp_path: Path) -> None:
    gemm(tmp_path, "h100_sxm/gemm/sglang/0.5.14", m=[16], latency=[0.25], gemm_dtype="sq")
    row = only(tmp_path, "gemm")
    expected = ANSWERS["test_gemm_row_has_its_time_in_microseconds"]["expected"]
    assert row == expected


@cases(__file__)
def test_row_of_each_table_has_the_columns_of_its_family(tmp_path, place, name, columns, family, expected):
    table(tmp_path, f"{place}/sglang/0.5.14", name, latency=0.001, **columns)
    assert only(tmp_path, family).items() >= {"time_us": 1.0, **expected}.items()


def test_newest_version_of_a_problem_counts_and_repeats_become_one_row(tmp_path: Path) -> None:
    gemm(tmp_path, "h100_sxm/gemm/trtllm/1.3.0rc9", m=[1, 2, 4], latency=[0.9, 0.9, 0.9])
    gemm(tmp_path, "h100_sxm/gemm/trtllm/1.3.0rc20", m=[1, 2], latency=[0.8, 0.8], kernel_source="renamed")
    gemm(tmp_path, "h100_sxm/gemm/trtllm/1.3.0", m=[2, 2, 2, 8], latency=[0.3, 0.5, 0.4, 0.0])
    imported = read(tmp_path)
    rows = imported.rows.set_index("m")
    assert rows["time_us"].round(6).to_dict() == {1: 800.0, 2: 400.0, 4: 900.0}
    assert rows["library_version"].to_dict() == {1: "1.3.0rc20", 2: "1.3.0", 4: "1.3.0rc9"}
    assert sorted(imported.metadata["left_out"].values()) == [1, 3]  # one row has no time, three are superseded


def test_rows_at_a_harness_floor_are_dropped_and_slow_kernels_are_kept(tmp_path: Path) -> None:
    real = [0.003 * step for step in range(1, 101)]
    slow, floor = [10 * time for time in real], [max(time, 0.1) for time in real]
    for name, times in {"good": real, "slow": slow, "floor": floor}.items():
        place = f"h100_sxm/gemm/{name}/1.0"
        gemm(tmp_path, place, m=[8 * step for step in range(1, 101)], latency=times, kernel_source=name)
    imported = read(tmp_path)
    assert sorted(imported.rows["algorithm"]) == ["floor"] * 34 + ["good"] * 100 + ["slow"] * 100
    (record,) = imported.metadata["floors"]
    assert (record["algorithm"], record["rows"], record["floor_us"]) == ("floor", 66, pytest.approx(100))


def test_experts_with_a_kernel_that_was_not_tuned_are_left_out(tmp_path: Path) -> None:
    """One run of ``chance`` in 18 takes 4 times as long as the others, and every run of ``never`` 5 times."""
    runs = [(2**i, law) for i in range(6) for law in ("balanced", "power_law_1.01", "power_law_1.2")]
    for name, factor in {"good": 1, "chance": 1, "never": 5}.items():
        slow = [4 if (name, run) == ("chance", (8, "power_law_1.2")) else factor for run in runs]
        columns = {**MIXTRAL, "moe_tp_size": [tp for tp, _ in runs], "distribution": [law for _, law in runs]}
        times = [1.6 / tp * slower for (tp, _), slower in zip(runs, slow, strict=True)]
        place = f"h100_sxm/moe/{name}/1.0"
        table(tmp_path, place, "moe", len(runs), latency=times, kernel_source=name, **columns)
    rows = read(tmp_path, "moe").rows
    kept = rows.loc[rows["algorithm"] == "chance", ["tensor_parallel", "routing"]].itertuples(index=False, name=None)
    assert set(rows["algorithm"]) == {"good", "chance"} and set(runs) - set(kept) == {(8, "power_law_1.2")}


def test_spikes_are_flagged_and_noise_is_estimated(tmp_path: Path) -> None:
    times = [0.01 * 1.01**step for step in range(60)]
    times[20] *= 1.2
    times[40] *= 0.8
    gemm(tmp_path, "h100_sxm/gemm/vllm/1.0", m=[2**10 + 8 * step for step in range(60)], latency=times)
    imported = read(tmp_path)
    rows = imported.rows.sort_values("m", ignore_index=True)
    assert rows.index[rows["spike"]].tolist() == [20, 40]
    assert imported.metadata["spikes"] == 2
    assert imported.metadata["noise"] < 0.001


def test_import_command_reads_a_wheel_or_a_checkout(tmp_path: Path, seer: Callable[..., Any]) -> None:
    folder, output = tmp_path / "aic-core/src/aiconfigurator_core/systems/data", tmp_path / "out.parquet"
    for name in ("h100_sxm", "l40s"):
        gemm(folder, f"{name}/gemm/vllm/1.0", m=[1, 2], latency=[1.0, 1.5])
    wheel = tmp_path / "aiconfigurator_core-0.12.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for path in folder.rglob("*.parquet"):
            file.write(path, "aiconfigurator_core/systems/data" / path.relative_to(folder))
    for source, version in ((wheel, "at 095f58a"), (tmp_path, "unknown version")):
        outcome = seer("import", "aiconfigurator", source, "--family", "gemm", "--gpu", "l40s", "-o", output)
        assert outcome.code == 0 and "rows of l40s 2" in outcome.err
        data = read_dataset(output)
        assert (data.candidates, set(data.frame["gpu"])) == ("listed", {"l40s"})
        assert version in data.metadata["licence_notices"][0]


def test_missing_tables_and_damaged_files_are_refused(refused, tmp_path: Path) -> None:
    gemm(tmp_path, "h100_sxm/gemm/vllm/1.0", m=[1], latency=[1.0])
    with refused("no table of family pool"):
        read(tmp_path, "pool")
    with refused("--gpu v100 has no table", "h100-sxm"):
        read(tmp_path, gpus=["v100"])
    (tmp_path / "a.whl").write_text("no wheel")
    with refused("a.whl: "):
        read(tmp_path / "a.whl")
    table(tmp_path, "h100_sxm/moe/vllm/1.0", "moe", latency=1.0)
    with refused("moe_perf", "hidden_size"):
        read(tmp_path, "moe")
    (tmp_path / "h100_sxm/gemm/vllm/1.0/gemm_perf.parquet").write_text("version https://git-lfs")
    with refused("gemm_perf.parquet: cannot be read as parquet"):
        read(tmp_path)


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="aiconfigurator-core is not installed")
def test_installed_package_is_read_without_paths() -> None:
    imported = FORMATS["aiconfigurator"].read([], family="quantise", gpus=["h100-sxm"])
    assert len(imported.rows) > 1000


def test_a_machine_without_access_between_its_gpus_is_left_out() -> None:
    """Eight L40S sum 1 GiB in 649 ms, over PCIe with 31.5 GB/s; its short messages go, too. Two L40S stay."""
    rows = pd.DataFrame(ANSWERS["all_reduces"]).assign(operator="all_reduce", dtype="fp16", math="default", variant="")
    assert with_peer_access(rows, family("transfer")).tolist() == [False, False, True, True]
