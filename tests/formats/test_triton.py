"""Reading Triton's autotuning caches, as its runtime/autotuner.py writes them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.description import description_of
from surrogate.formats import FORMATS
from surrogate.formats.imported import Imported
from tests.formats.conftest import kernel
from tests.known import known_answers

ANSWERS = known_answers(__file__)

FAILED = [math.inf, math.inf, math.inf]


def configuration(num_warps: int = 4, *, maxnreg: int | None = None, **kwargs: Any) -> dict[str, Any]:
    fixed = {"num_warps": num_warps, "num_ctas": 1, "num_stages": 3, "maxnreg": maxnreg}
    return {"kwargs": kwargs, **fixed, "pre_hook": None, "ir_override": None}


TIMINGS = [
    [configuration(4, BLOCK_M=64, EVEN=True), [0.5, 0.25, 0.75]],
    [configuration(8, BLOCK_M=128, EVEN=False), FAILED],
]


def save(folder: Path, key: list[Any], timings: Any = TIMINGS, name: str = "matmul_kernel", entry: str = "A") -> Path:
    path = folder / entry / f"{name}.autotune.json"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps({"key": key, "configs_timings": timings}))
    return path


def read(*paths: Path, **options: str) -> Imported:
    return FORMATS["triton"].read(paths, **{"gpu": "h100-sxm", **options})


def test_folder_of_keys_becomes_one_table(tmp_path: Path) -> None:
    """Newer versions of Triton write every value of a key as text."""
    save(tmp_path / "deep", [512, 1024, 64, "torch.float16", "torch.float16"])
    save(tmp_path, ["512", "2048", "64", "torch.bfloat16", "torch.float16"], TIMINGS[:1], entry="B")
    (tmp_path / "B" / "matmul_kernel.json").write_text("{}")
    imported = read(tmp_path, keys="m, n,k")
    rows = imported.rows
    assert rows.columns.tolist() == ANSWERS["columns"]
    columns = ["n", "dtype_0", "BLOCK_M", "EVEN", "num_warps", "status", "time_us", "time_us_min", "time_us_max"]
    assert rows[columns].fillna(-1.0).to_numpy().tolist() == ANSWERS["rows"]
    assert "did not compile" in rows["reason"].tolist()[2]
    assert rows["m"].dtype == "int64" and rows["EVEN"].dtype == "bool"
    assert imported.notes == ("maxnreg: None everywhere, left out", "ir_override: None everywhere, left out")
    assert kernel(imported) == ANSWERS["matmul_kernel"]
    first = {str(name): value for name, value in rows.iloc[0].items()}
    assert description_of(kernel(imported), "the table").text(first).startswith("BLOCK_M=64,EVEN=True,num_warps=4")


def test_unnamed_keys_and_texts_become_settings(refused, tmp_path: Path) -> None:
    save(tmp_path, [512, "relu", True, "torch.float16"])
    save(tmp_path, [64, "", None, "torch.float16"], entry="B")
    imported = read(tmp_path)
    assert kernel(imported)["sizes"] == ["key_0"]
    assert kernel(imported)["settings"] == ANSWERS["unnamed_keys"]
    save(tmp_path, [512, "torch.float16"], entry="C")
    with refused("keys of matmul_kernel have 1 to 3 values; name them with --keys"):
        read(tmp_path)
    with_keys = read(tmp_path, keys="n")
    assert kernel(with_keys)["settings"]["dtype_2"] == ["none", "torch.float16"]
    with refused("its key has 2 values, --keys names 3"):
        read(tmp_path, keys="m,n,k")


def test_repeated_keys_are_merged_and_register_limits_are_kept(tmp_path: Path) -> None:
    limited = configuration(4, maxnreg=128, BLOCK_M=64, EVEN=True)
    save(tmp_path, [8, "torch.float16"], [[TIMINGS[0][0], 0.5], [limited, [0.25]], TIMINGS[1]])
    save(tmp_path, [8, "torch.float16"], [[TIMINGS[0][0], 1.5], [TIMINGS[1][0], 4]], entry="B")
    imported = read(tmp_path, keys="n")
    columns = ["num_warps", "maxnreg", "status", "time_us", "time_us_min", "time_us_max", "repeats"]
    assert imported.rows[columns].to_numpy().tolist() == ANSWERS["repeated"]
    assert imported.notes[0] == "maxnreg: None is 0"


@pytest.mark.parametrize(("content", "message"), ANSWERS["wrong"])
def test_wrong_files_are_refused(refused, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "k.autotune.json").write_text(content)
    with refused("k.autotune.json", message):
        read(tmp_path / "k.autotune.json")
