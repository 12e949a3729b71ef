"""Tests of the ranking source for unmeasured GPUs, which held-out GPUs decide; times are invented."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from surrogate.bundle.bundle import load, save
from surrogate.bundle.train import average_costs, best_ranking_source
from surrogate.dataset.rows import Rows
from surrogate.uncertainty.intervals import AVERAGE_RANK, RANK_BY_MODEL
from tests.prediction.conftest import bundle_of
from tests.tables import checked, every

GPUS = ("h100-sxm", "a100-sxm4-80gb", "l40s")
Times = Callable[[str, int, str], float]


def rows(time_of: Times) -> Rows:
    """Return products of four sizes by two candidates on three GPUs."""
    frame = every(gpu=GPUS, m=(16, 64, 256, 1024), algorithm=("a", "b")).assign(n=512, k=512)
    frame["time_us"] = [time_of(*row) for row in zip(frame["gpu"], frame["m"], frame["algorithm"], strict=True)]
    setting = {"family": "gemm", "operator": "gemm", "dtype": "bf16", "math": "default", "variant": "", "batch": 1}
    return checked(frame.assign(library="vllm", library_version="1", status="ok", **setting))


def chosen(table: Rows, model_us: np.ndarray) -> tuple[str, dict[str, float]]:
    gpu = table.frame["gpu"].to_numpy()
    splits = [(np.flatnonzero(gpu != name), np.flatnonzero(gpu == name)) for name in GPUS]
    return best_ranking_source(table, splits, model_us, np.ones(len(table), dtype=bool))


def test_an_average_rank_costs_the_mean_log_slowdown() -> None:
    """Candidate b takes twice as long on one of three GPUs."""
    costs = average_costs(rows(lambda gpu, m, name: 20.0 if (gpu, name) == ("l40s", "b") else 10.0))
    by_name = {label.rpartition("|")[2]: cost for label, cost in costs.items()}
    assert by_name == {"a": 0.0, "b": pytest.approx(np.log(2) / 3, abs=1e-4)}


def test_the_source_with_the_best_order_on_held_out_gpus_is_chosen() -> None:
    always_a = rows(lambda gpu, m, name: 10.0 if name == "a" else 15.0)
    wrong = np.where(always_a.frame["algorithm"] == "a", 2.0, 1.0)
    name, means = chosen(always_a, wrong)
    assert name == AVERAGE_RANK
    assert means == {AVERAGE_RANK: 0.0, RANK_BY_MODEL: pytest.approx(np.log(1.5))}
    assert chosen(always_a, always_a.time_us)[0] == RANK_BY_MODEL  # on a tie the model answers
    by_size = rows(lambda gpu, m, name: 10.0 if (name == "a") == (m < 100) else 15.0)
    name, means = chosen(by_size, by_size.time_us)
    assert name == RANK_BY_MODEL and means[RANK_BY_MODEL] == 0.0 < means[AVERAGE_RANK]


@pytest.mark.parametrize(
    ("source", "costs"), [(RANK_BY_MODEL, {}), (AVERAGE_RANK, {"gemm|bf16|default||vllm|a": 0.25})]
)
def test_a_bundle_keeps_its_ranking_source(source: str, costs: dict[str, float], tmp_path: Path) -> None:
    table = rows(lambda gpu, m, name: 10.0)
    bundle = bundle_of(table.frame)
    part = bundle.family_models["gemm"]
    unseen = structs.replace(part.unmeasured_gpu, ranking_source=source, mean_log_slowdowns=costs)
    save(replace(bundle, family_models={"gemm": replace(part, unmeasured_gpu=unseen)}), tmp_path / "bundle")
    assert load(tmp_path / "bundle").family_models["gemm"].unmeasured_gpu == unseen
