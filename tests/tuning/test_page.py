"""The examples of the page on tuning: from a Triton cache to a pruned launch, and the search."""

import importlib.util
import itertools
import json
import re
import shlex
import sys
import types
from operator import itemgetter
from pathlib import Path
from typing import Any

from surrogate.features.description import read_description

PAGE = Path(__file__).resolve().parents[2] / "surrogate" / "tuning" / "README.md"


def blocks(language: str) -> list[str]:
    """Return the code blocks of the page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


class FakeConfig:
    """The part of `triton.Config` that a performance model can read."""

    def __init__(self, kwargs: dict[str, int], num_warps: int = 4, num_stages: int = 3) -> None:
        self.kwargs = {**kwargs, "num_warps": num_warps, "num_ctas": 1, "num_stages": num_stages}

    def all_kwargs(self) -> dict[str, int]:
        return self.kwargs


class FakeAutotuner:
    """Prune like Triton: call the model for each configuration with all arguments."""

    def __init__(self, configs: list[FakeConfig], prune_configs_by: dict[str, Any]) -> None:
        self.configs, self.prune = configs, prune_configs_by
        self.nargs: dict[str, Any] = {}

    def prune_configs(self, kwargs: dict[str, Any]) -> list[FakeConfig]:
        model = self.prune["perf_model"]
        expected = {config: model(**self.nargs, **kwargs, **config.all_kwargs()) for config in self.configs}
        return sorted(expected, key=lambda config: expected[config])[: self.prune["top_k"]]


def fake_triton() -> types.ModuleType:
    """Return a module with the names of Triton that the page uses."""
    module = types.ModuleType("triton")
    module.Config = FakeConfig  # type: ignore[attr-defined]
    module.jit = lambda function: function  # type: ignore[attr-defined]
    module.autotune = lambda configs, key, prune_configs_by: lambda function: FakeAutotuner(configs, prune_configs_by)  # type: ignore[attr-defined]
    return module


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
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def test_examples_lead_from_a_triton_cache_to_one_configuration(seer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_cache(tmp_path / ".triton" / "cache")
    for line in blocks("sh")[0].splitlines():
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
