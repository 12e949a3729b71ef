"""Engine configurations of cuDNN: a small table is trained on, and cuDNN's list is a replaced function."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.bundle.bundle import Bundle
from surrogate.collect import open_device
from surrogate.collect.device import DeviceInfo, DeviceLostError, HeuristicEntry, Measurement, RepeatPolicy
from surrogate.dataset.store import write_dataset
from surrogate.features.conv import CONV, Conv
from surrogate.models.linear import LinearTerms
from surrogate.prediction.autotune import autotune
from surrogate.prediction.predictor import Predictor
from tests.known import known_answers
from tests.prediction.conftest import bundle_of
from tests.tables import every

FACTORS = {"eng0": 4.0, "eng1_k2=1_k3=0": 3.0, "eng1_k2=3_k3=0": 1.0, "eng2_k2=2_k3=0": 2.0}
"""Measured configuration → its time, in times of the fastest one."""
LISTED = (
    HeuristicEntry("eng9_k2=7", "ok", workspace_bytes=0, deterministic=True),
    HeuristicEntry("eng2_k2=2_k3=0", "ok", workspace_bytes=4096, deterministic=False),
    HeuristicEntry("eng0", "ok", workspace_bytes=64, deterministic=True),
)
NEVER = ("eng9_k2=7", "never measured in the bundle's training data")
WORDS = ["n8c32h14k32r3p1", "--dtype", "fp16", "--layout", "NHWC"]
PROBLEM = Conv(n=8, c=32, h=14, k=32, r=3, pad_h=1, dtype="fp16", math="tensor_op", layout="NHWC")


class Ranking:
    """The answers of `open_ranking`: the same list for every problem."""

    release = "9.19.0"

    def __init__(self, gpu: str) -> None:
        self.gpu = gpu

    def device_info(self) -> DeviceInfo:
        return DeviceInfo(self.gpu, "cudnn-graph", self.release)

    def heuristic(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        if self.gpu == "h200-sxm":
            raise DeviceLostError("signal 11")
        return LISTED

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture(scope="module")
def engines() -> pd.DataFrame:
    rows = every(c=(16, 32, 64, 128), r=(1, 3), h=(14, 28), n=(1, 8), algorithm=FACTORS)
    work = rows["n"] * rows["c"] ** 2 * rows["r"] ** 2 * rows["h"] ** 2
    rows["time_us"] = (5 + work / 1e6) * rows["algorithm"].map(FACTORS)
    rows = rows.assign(k=rows["c"], pad_h=rows["r"] // 2)
    rows["heuristic_rank"] = rows["algorithm"].map({name: rank for rank, name in enumerate(FACTORS, 1)})
    return rows.assign(w=rows["h"], s=rows["r"], pad_w=rows["pad_h"], **known_answers(__file__)["columns"])


@pytest.fixture(scope="module")
def engine_bundle(engines: pd.DataFrame) -> Bundle:
    return bundle_of(engines, LinearTerms())


@pytest.fixture
def ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_device, "open_ranking", Ranking)


@pytest.mark.usefixtures("ranking")
def test_only_listed_configurations_are_ranked(engine_bundle: Bundle) -> None:
    predictor = Predictor(engine_bundle, library="cudnn-graph")
    found = predictor.select(PROBLEM)
    assert [each.algorithm for each in found.candidates] == ["eng2_k2=2_k3=0", "eng0"] and found.excluded == (NEVER,)
    best = found.candidates[0]
    assert (best.workspace_bytes, best.deterministic) == (4096, False)
    limited = predictor.select(PROBLEM, workspace_limit=100)
    assert limited.algorithm == predictor.select(PROBLEM, deterministic=True).algorithm == "eng0"
    assert predictor.predict(PROBLEM).time_us == found.time_us
    table = pd.DataFrame([PROBLEM.to_dict()] * 2)
    assert predictor.predict(table).to_frame()["predicted_us"].tolist() == pytest.approx([found.time_us] * 2)


@pytest.mark.usefixtures("ranking")
def test_configurations_of_a_similar_gpu_compete_on_an_unmeasured_one(engine_bundle: Bundle, refused) -> None:
    found = Predictor(engine_bundle, gpu="h800").select(PROBLEM)
    assert {each.algorithm for each in found.candidates} == {"eng2_k2=2_k3=0", "eng0"} and not found.in_domain
    with refused("cuDNN's heuristic failed: signal 11"):
        Predictor(engine_bundle, gpu="h200").select(PROBLEM)


@pytest.mark.usefixtures("ranking")
def test_the_list_of_another_release_is_refused(engine_bundle, refused, monkeypatch) -> None:
    monkeypatch.setattr(Ranking, "release", "9.26.0")
    for version in (None, "9.26.0", "9.20.0"):
        with refused("cuDNN 9.19.0 were measured", "9.26.0 is installed"):
            Predictor(engine_bundle).select(PROBLEM, library_version=version)


@pytest.mark.usefixtures("ranking")
def test_beside_other_libraries_configurations_compete_only_if_they_are_requested(engines, monkeypatch) -> None:
    """One question has one answer in select, predict, tables and networks, also where cuDNN's list is missing."""
    algorithm = engines[engines["algorithm"] == "eng0"].assign(library="cudnn", algorithm="IMPLICIT_PRECOMP_GEMM")
    both = bundle_of(pd.concat([engines, algorithm], ignore_index=True), LinearTerms())
    predictor = Predictor(both)
    requested = predictor.select(PROBLEM, library="cudnn-graph")
    (time,) = Predictor(both, library="cudnn-graph").kernel_times([PROBLEM])
    assert time.algorithm == requested.algorithm == "eng2_k2=2_k3=0"
    assert predictor.predict(PROBLEM, "eng1_k2=3_k3=0").library == "cudnn-graph"
    monkeypatch.setattr(Ranking, "release", "9.26.0")
    found = predictor.select(PROBLEM)
    assert [each.algorithm for each in found.candidates] == ["IMPLICIT_PRECOMP_GEMM"]
    (time,) = predictor.kernel_times([PROBLEM])
    assert time.algorithm == predictor.predict(PROBLEM).algorithm == "IMPLICIT_PRECOMP_GEMM"


def test_a_named_configuration_needs_no_list(engine_bundle: Bundle, engines: pd.DataFrame) -> None:
    predictor = Predictor(engine_bundle)
    assert predictor.predict(PROBLEM, "eng1_k2=3_k3=0").source == "model"
    predicted = predictor.predict(engines).to_frame()
    assert predicted["supported"].all() and np.isfinite(predicted["predicted_us"]).all()
    assert CONV.candidates("cudnn-graph", CONV.setting_of(PROBLEM)) == ()


class EngineDevice(Ranking):
    """A GPU that times its configurations: the later one is listed, the longer it takes."""

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        return tuple(entry.algorithm for entry in LISTED)

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        time_us = 10.0 * (1 + self.candidates(conv).index(algorithm))
        return Measurement("ok", "", (time_us,), (time_us,), "cupti")


@pytest.mark.usefixtures("ranking")
def test_measuring_opens_the_device_of_engine_configurations(engine_bundle, monkeypatch, tmp_path) -> None:
    opened: list[tuple[str, bool]] = []

    def open_gpu(name: str, *, engines: bool = False) -> EngineDevice:
        opened.append((name, engines))
        return EngineDevice("h100-sxm")

    monkeypatch.setattr(open_device, "open_device", open_gpu)
    predictor = Predictor(engine_bundle, library="cudnn-graph")
    tuned = autotune(PROBLEM, "cudnn", 2, predictor=predictor, cache=tmp_path / "cache")
    assert opened == [("cudnn", True)]
    assert (tuned.library, tuned.algorithm, tuned.time_us) == ("cudnn-graph", "eng2_k2=2_k3=0", 20.0)


@pytest.mark.usefixtures("ranking")
def test_train_select_compare_and_evaluate(seer: Callable[..., Any], engines: pd.DataFrame, tmp_path: Path) -> None:
    write_dataset(engines, tmp_path / "engines.parquet", candidates="listed")
    data, folder = tmp_path / "engines.parquet", tmp_path / "bundle"
    assert seer("train", data, "--model", "linear-terms", "-o", folder).code == 0
    found = seer("select", "--bundle", folder, "--library", "cudnn-graph", *WORDS, "--json").succeeded().json
    assert [each["algorithm"] for each in found["candidates"]] == ["eng2_k2=2_k3=0", "eng0"]
    assert found["excluded"] == [dict(zip(("algorithm", "reason"), NEVER, strict=True))]
    assert "paired_vs_heuristic" in seer("evaluate", folder, data).succeeded().out
    compared = seer("compare", data, "--models", "linear-terms", "--seeds", "1", "-o", tmp_path / "report").succeeded()
    assert "cudnn-graph-" in compared.out and "vs best of first ten" not in compared.out  # only four are listed


def test_a_table_of_engine_configurations_without_measurements_is_refused_in_one_line(seer, engines, tmp_path) -> None:
    engines.to_csv(tmp_path / "engines.csv")
    result = seer("predict", "--gpu", "h100", "--data", tmp_path / "engines.csv", "-o", tmp_path / "out.csv")
    assert result.is_refusal("no engine configuration of cuDNN", "`seer collect --device cudnn --engines`"), result.err
