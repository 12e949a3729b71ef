"""The examples of the page on tuning: from a Triton cache to a pruned launch, and the search."""

import importlib.util
import itertools
import json
import re
import runpy
import shlex
import sys
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from surrogate.features.description import read_description

PAGE = Path(__file__).resolve().parents[2] / "surrogate" / "tuning" / "README.md"


def blocks(language: str) -> list[str]:
    """Return the code blocks of the page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def fake_triton() -> Any:
    """Return the names of Triton that the page uses; its autotuner calls the model as Triton does."""

    def config(kwargs: dict[str, int], num_warps: int) -> Any:
        values = {**kwargs, "num_warps": num_warps, "num_ctas": 1, "num_stages": 3}
        return SimpleNamespace(all_kwargs=lambda: values)

    def autotune(configs: list[Any], key: list[str], prune_configs_by: dict[str, Any]) -> Any:
        def prune(kwargs: dict[str, Any]) -> list[Any]:
            model = prune_configs_by["perf_model"]
            ranked = sorted(configs, key=lambda each: model(**tuned.nargs, **kwargs, **each.all_kwargs()))
            return ranked[: prune_configs_by["top_k"]]

        tuned = SimpleNamespace(nargs={}, prune_configs=prune)
        return lambda function: tuned

    return SimpleNamespace(Config=config, jit=lambda function: function, autotune=autotune)


def expected_us(m: int, n: int, block_m: int, block_n: int, warps: int) -> float:
    """Return a made-up time; large tiles are fastest with 4 warps and small ones with 2."""
    tiles = -(-m // block_m) * -(-n // block_n)
    return tiles * (1 + block_m * block_n / 512 * (1 + 0.3 * abs(warps - (4 if block_m * block_n > 1024 else 2))))


def write_cache(folder: Path) -> None:
    """Write the cache that Triton would keep for twelve shapes."""
    for m, n in itertools.product((64, 100, 512, 1024), (16, 100, 2000)):
        timings = []
        for block_m, block_n, warps in itertools.product((16, 64), (16, 64), (2, 4)):
            config = {"kwargs": {"BLOCK_M": block_m, "BLOCK_N": block_n}, "num_warps": warps, "num_ctas": 1}
            config |= {"num_stages": 3, "maxnreg": None, "pre_hook": None, "ir_override": None}
            time_ms = expected_us(m, n, block_m, block_n, warps) / 1e3
            timings.append([config, [time_ms, time_ms, time_ms]])
        path = folder / f"{m}x{n}" / "matmul.autotune.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"key": [m, n], "configs_timings": timings}))


def names_of(path: Path, source: str) -> dict[str, Any]:
    """Return the names of a block run as a file, because Triton reads the source of kernels."""
    path.write_text(source)
    return runpy.run_path(str(path))


def test_examples_lead_from_a_triton_cache_to_one_configuration(seer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_cache(tmp_path / ".triton" / "cache")
    for line in next(block for block in blocks("sh") if "import triton" in block).splitlines():
        done = seer(*[str(Path(word).expanduser()) for word in shlex.split(line)[1:]]).succeeded()
    assert "BLOCK_M" in done.out
    if importlib.util.find_spec("triton") is None:
        monkeypatch.setitem(sys.modules, "triton", fake_triton())
    source, search = blocks("python")
    names = names_of(tmp_path / "kernel.py", source)
    tuned = names["matmul"]
    key = itemgetter("BLOCK_M", "BLOCK_N", "num_warps")
    configurations = {key(config.all_kwargs()): config for config in names["CONFIGS"]}
    slowdowns = []
    for m, n in ((100, 100), (512, 1000), (1000, 64), (300, 300), (64, 1024), (800, 200)):
        tuned.nargs = {"a": None, "b": None, "c": None, "m": m, "n": n}
        (picked,) = tuned.prune_configs({})
        times_us = {name: expected_us(m, n, *name) for name in configurations}
        chosen = next(times_us[name] for name, config in configurations.items() if config is picked)
        slowdowns.append(chosen / min(times_us.values()))
    assert sum(slowdowns) / len(slowdowns) <= 1.25
    searched = names_of(tmp_path / "search.py", search)["tuner"]
    assert searched.best[1] == 125.0
    assert searched.evaluations == 3


def test_the_example_description_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "matmul.toml"
    path.write_text(blocks("toml")[0])
    assert read_description(path).name == "matmul"
