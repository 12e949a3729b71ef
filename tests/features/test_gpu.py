"""The GPU registry: names and aliases, figures, users' own files, one-line errors."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from surrogate.features.families.gemm import Gemm
from surrogate.features.gpu import ENVIRONMENT_VARIABLE, GpuRegistry, gpu, gpus, registry, uncapped
from surrogate.features.kernels import device_attributes
from surrogate.features.roofline import missing_units
from tests.features.known_answers import ANSWERS
from tests.known import cases

MINE = ANSWERS["users_gpu"]


@pytest.mark.parametrize(("alias", "name"), ANSWERS["spelt_otherwise"].items())
def test_gpu_accepts_other_spellings_of_a_name(alias: str, name: str) -> None:
    assert gpu(alias).name == name


@pytest.mark.parametrize(("name", "candidates"), ANSWERS["ambiguous_gpus"])
def test_ambiguous_names_list_their_candidates(refused, name: str, candidates: list[str]) -> None:
    with refused(repr(name), *candidates):
        gpu(name)


@pytest.mark.parametrize(("name", "board", "other"), ANSWERS["family_boards"])
def test_family_name_selects_its_most_common_board(name: str, board: str, other: str) -> None:
    assert gpu(name).name == board
    note = registry().ambiguity_note(name)
    assert note and board in note and other in note
    assert not any(map(registry().ambiguity_note, (board, "NVIDIA_H200")))


@cases(__file__)
def test_architecture_and_compute_units_name_a_board(architecture: str, units: int, name: str) -> None:
    assert registry().with_units(architecture, units)[0].name == name


def test_unregistered_count_of_compute_units_is_refused(refused) -> None:
    with refused("gfx942 with 152", "mi300x has 304", "mi308x has 80"):
        registry().with_units("gfx942", 152)
    with refused("gfx777 with 8", "no GPU has this architecture"):
        registry().with_units("gfx777", 8)


@pytest.mark.parametrize("name", ["cpu", "iPhone_7", "", "nvidia"])
def test_unknown_gpu_is_refused_in_one_line(refused, name: str) -> None:
    with refused(repr(name)):
        gpu(name)


def test_geforce_tensor_peaks_accumulate_in_fp32() -> None:
    """Source: NVIDIA's GA102, Ada and Blackwell whitepapers: half the rate of the 1,024 operations with fp16 sums."""
    names = re.compile(r"rtx-[2-5]0[5-9]0")
    boards = [board for board in gpus() if names.match(board.name)]
    assert len(boards) > 15
    for board in boards:
        assert board.fp16_tensor_tflops * 1e6 / board.sms / board.boost_mhz == pytest.approx(512, rel=0.01)


def test_gemm_peak_is_limited_by_power_and_issue_slots() -> None:
    """A V100 reaches its peak, a 70 W T4 half of it, an H100 86 %; an MI100 uses its matrix units if allowed."""
    maths = {"v100-pcie-32gb": "fma", "t4": "fma", "h100-sxm": "fma", "mi100": "default"}
    peaks = {name: Gemm.peak_tflops(gpu(name), "fp32", math) for name, math in maths.items()}
    assert peaks["v100-pcie-32gb"] == pytest.approx(14.0, rel=0.01)
    assert peaks["t4"] == pytest.approx(0.07 * 56) and peaks["h100-sxm"] == pytest.approx(0.86 * 66.9, rel=0.01)
    assert gpu("mi100").fp32_tflops < peaks["mi100"] < gpu("mi100").fp32_matrix_tflops
    assert Gemm.peak_tflops(gpu("a100-sxm4-80gb"), "fp32", "default") == 156  # TF32 runs on tensor cores


def test_uncapped_restores_the_tensor_rate_of_the_architecture() -> None:
    h20, l20 = uncapped(gpu("h20")), uncapped(gpu("l20"))
    assert (h20.bf16_tensor_tflops, h20.int8_tensor_tflops) == pytest.approx((585, 1169), rel=0.02)
    assert (l20.fp8_tensor_tflops, l20.int8_tensor_tflops) == pytest.approx((475, 475), rel=0.02)
    for name in ("h100-sxm", "h800", "h100-pcie", "rtx-6000-ada", "v100-sxm2-16gb", "mi300x", "p4"):
        assert uncapped(gpu(name)) is gpu(name)


def test_user_file_adds_gpus(refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE, encoding="utf-8")
    added = registry().with_file(path).gpus[-1]
    assert added.fp32_tflops == pytest.approx(10 * 128 * 2 * 1e-3)
    assert added.tf32_tflops == 50
    assert (added.l2_bytes, added.checked, added.contradictions()) == (8 * 2**20, False, [])
    wrong = replace(added, datasheet={"fp32_tflops": 90, "cores": 1280})
    assert wrong.contradictions() == ["datasheet.fp32_tflops is 90, computed is 2.56"]
    with refused():
        gpu("my-gpu")
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(path))
    assert gpu("my gpu 9000") == added
    assert gpus()[-1] == added
    assert gpu("v100").sms == 80
    assert registry().find("my-gpu") == added


def test_user_row_replaces_a_bundled_row(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace("my-gpu", "t4"), encoding="utf-8")
    extended = registry().with_file(path)
    assert extended.find("t4").sms == 10
    assert len(extended.gpus) == len(gpus())
    assert gpu("t4").sms == 40


@pytest.mark.parametrize(("old", "new", "message"), ANSWERS["faulty_gpu_files"])
def test_faulty_user_file_is_refused_in_one_line(refused, tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace(old, new), encoding="utf-8")
    with refused(str(path), message):
        registry().with_file(path)


def test_two_gpus_may_not_share_a_name(refused) -> None:
    t4 = gpu("t4")
    with refused("belongs to t4 and to t5"):
        GpuRegistry((t4, replace(t4, name="t5")), {})


def test_gtx_1080_ti_figures_match_driver_and_profiler() -> None:
    board = gpu("gtx-1080-ti")
    figures = board.to_dict() | device_attributes(board)
    assert figures["memory_clock_mhz"] == pytest.approx(5505, rel=2e-3)
    assert figures["pcie_gbs"] == pytest.approx(15.7, abs=0.06)
    expected = ANSWERS["gtx_1080_ti"]
    assert {name: figures[name] for name in expected} == pytest.approx(expected)


def test_blocks_may_opt_in_to_more_shared_memory() -> None:
    """The CUDA guide lists 48 KiB a block, with opt-in 96 KiB (V100) or 227 KiB (H100), and 128 resident grids."""
    names = ("shared_per_block_bytes", "shared_per_block_optin_bytes", "concurrent_kernels")
    attributes = {name: [device_attributes(gpu(name))[key] for key in names] for name in ("v100-sxm2-16gb", "h100-sxm")}
    assert attributes == {"v100-sxm2-16gb": [48 << 10, 96 << 10, 128], "h100-sxm": [48 << 10, 227 << 10, 128]}


def test_memory_clock_matches_the_driver() -> None:
    """A V100's HBM2 runs at 877 MHz, a T4's GDDR6 at 5001."""
    assert device_attributes(gpu("v100-sxm2-16gb"))["memory_clock_mhz"] == pytest.approx(877, rel=3e-3)
    assert device_attributes(gpu("t4"))["memory_clock_mhz"] == pytest.approx(5001, rel=1e-3)
    assert device_attributes(gpu("mi210"))["warps_per_sm"] is None


@pytest.mark.parametrize(("name", "kib"), [("mi300x", 64), ("mi355x", 160), ("rx-7900-xtx", 64)])
def test_a_workgroup_may_use_all_of_the_lds(name: str, kib: int) -> None:
    assert device_attributes(gpu(name))["shared_per_block_optin_bytes"] == kib << 10


def test_mig_instance_has_its_share_of_the_board() -> None:
    instance = gpu("NVIDIA A100-SXM4-40GB MIG 2g.10gb")
    board = gpu("NVIDIA A100-SXM4-40GB")
    assert (instance.sms, instance.memory_bytes, instance.name) == (28, 10 << 30, "NVIDIA A100-SXM4-40GB MIG 2g.10gb")
    assert instance.dram_gbs == board.dram_gbs / 4 and instance.fp16_tensor_tflops == pytest.approx(312 * 28 / 108)
    assert (gpu("NVIDIA H100 NVL").name, gpu("NVIDIA GH200 480GB").name) == ("h100-nvl", "gh200")
    assert gpu("gfx1030_36").sms == 2 * 36  # MIOpen's find-db counts work-group processors


def test_dtype_needs_units_of_the_architecture() -> None:
    """By the datasheets, fp8 needs Ada or Hopper, fp4 Blackwell, bf16 Ampere and fp16 Volta."""
    able = (("v100", "fp16"), ("h100", "fp8"), ("a100", "int8_sq"), ("t4", "int4_wo"), ("p4", "int8"), ("k80", "fp64"))
    assert not [pair for pair in able if missing_units(gpu(pair[0]), pair[1])]
    unable = (("v100", "bf16"), ("t4", "fp8"), ("a100", "fp8_block"), ("h100", "nvfp4"), ("k80", "int8_wo"))
    assert all(missing_units(gpu(name), dtype) for name, dtype in unable)
    assert missing_units(gpu("k80"), "fp16", "tensor_op") and not missing_units(gpu("k80"), "fp16", "fma")
