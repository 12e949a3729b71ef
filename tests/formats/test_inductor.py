"""Reading Inductor's autotuning logs, as torch/_inductor/select_algorithm.py writes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.description import description_of
from surrogate.formats import FORMATS
from surrogate.formats.imported import Imported
from tests.formats.conftest import kernel
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)


def triton(time: float, block_m: int, **rest: Any) -> dict[str, Any]:
    sizes = {"BLOCK_M": block_m, "BLOCK_K": 32, "BLOCK_N": 64}
    return {"type": "triton", "time": time, **sizes, "num_stages": 3, "num_warps": 4, **rest}


CUBLAS = {"type": "cublas", "time": 0.25}
PRODUCTS: list[Any] = json.loads(Path(__file__).with_name("samples").joinpath("inductor_products.json").read_text())
SHAPE = {"B": 1, "Hq": 2, "Hkv": 2, "seq_len_q": 128, "seq_len_kv": 256, "qk_head_dim": 64, "v_head_dim": 32}


def save(folder: Path, log: object) -> Path:
    (folder / "log.json").write_text(json.dumps(log, indent=4))
    return folder / "log.json"


def read(*paths: Path, **options: str) -> Imported:
    return FORMATS["inductor"].read(paths, **{"gpu": "h100-sxm", **options})


def test_matrix_products_become_rows_and_a_kernel(tmp_path: Path) -> None:
    """The key is (M, K, N); cuBLAS has no parameters; the fastest of equal choices counts."""
    imported = read(save(tmp_path, PRODUCTS))
    columns = ["m", "n", "k", "library", "status", "time_us"]
    rows = imported.rows
    assert rows[columns].fillna(-1.0).to_numpy().tolist() == ANSWERS["products"]
    assert rows["BLOCK_M"].dtype == "Int64" and rows["BLOCK_M"].isna().tolist() == [True, False, False, False]
    assert rows["algorithm"].fillna("").tolist() == ["cublas", "", "", ""]
    assert kernel(imported) == ANSWERS["inductor_mm"]
    assert imported.candidates == "listed" and not imported.notes


def test_repeats_are_merged_and_symbolic_sizes_are_dropped(tmp_path: Path) -> None:
    repeats = [{"(8, 64, 1024)": [triton(0.25, 64), triton(1.0, 64, GROUP_M=8)]}, {"(s0, 64, 1024)": [CUBLAS]}]
    imported = read(save(tmp_path, [PRODUCTS[2], *repeats]))
    columns = ["BLOCK_M", "GROUP_M", "time_us", "time_us_min", "time_us_max", "repeats"]
    repeated, single = imported.rows[columns].to_numpy().tolist()
    assert (repeated, single) == ([64, 0, 500.0, 250.0, 750.0, 2], [64, 8, 1000.0, 1000.0, 1000.0, 1])
    assert imported.notes == ("1 tuning with symbolic sizes left out", "GROUP_M: None is 0")


def test_each_kind_of_product_is_a_separate_kernel(refused, tmp_path: Path) -> None:
    """The key of a batched product is (batch, m, n)."""
    path = save(tmp_path, [*PRODUCTS, {"(4, 512, 1024)": [triton(0.5, 64)], "kernel_type": "bmm"}])
    with refused("choose with --name: inductor_bmm, inductor_mm"):
        read(path)
    imported = read(path, name="inductor_bmm")
    assert imported.rows[["batch", "m", "n", "time_us"]].to_numpy().tolist() == [[4, 512, 1024, 500.0]]
    assert kernel(imported)["sizes"] == ["batch", "m", "n"]


@pytest.mark.parametrize("is_old", [True, False])
def test_attention_sizes_are_read_from_key_or_choices(refused, tmp_path: Path, is_old: bool) -> None:
    """Older versions write the sizes in the key, newer ones in every choice."""
    log: list[Any] = []
    for kind in ("forward", "backward"):
        key = str((kind, *SHAPE.values()))
        choice = triton(0.5, 64)
        choices = [choice | SHAPE | {"kernel_type": kind}]
        new = {"query_shape": "[1, 2, 128, 64]", "kernel_type": kind, "choices": choices}
        log.append({key: [choice]} if is_old else new)
    path = save(tmp_path, log)
    with refused("choose with --name: inductor_backward, inductor_forward"):
        read(path)
    imported = read(path, name="inductor_backward")
    assert imported.rows[[*SHAPE, "time_us"]].to_numpy().tolist() == [[*SHAPE.values(), 500.0]]
    described = description_of(kernel(imported), "the table")
    assert described.sizes == tuple(SHAPE) and "BLOCK_M" in described.parameters and "B" not in described.parameters


@cases(__file__)
def test_wrong_files_are_refused(refused, tmp_path: Path, log: object, message: str) -> None:
    with refused("log.json", message):
        read(save(tmp_path, log))
