"""A folder of invented sources (test data, no measurement), and cheap models."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from experiments.experiment import Effort
from experiments.sources import FILES, Sources
from surrogate.dataset.columns import SCHEMA_VERSION
from surrogate.dataset.tables import write_table
from surrogate.features.description import Description
from surrogate.models.boosted import BoostedTerms
from tests.tables import every

AMD = {"mi210": "MI210", "mi100": "MI100", "mi300x": "MI300X", "navi21": "Navi21"}
VERSIONS = ("7.5.0", "7.6.4")
WINNERS = {"A100": "NVIDIA A100 80GB PCIe", "V100": "Tesla V100-PCIE-32GB"}
GUESSES = {"IMPLICIT_GEMM": "IMPLICIT_GEMM/PRECOMP(implicit_convolve_sgemm)", "WINOGRAD": "WINOGRAD"}


@pytest.fixture(scope="session")
def sources(table: Callable[..., pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Every file of `FILES`, small, with times that follow from FLOPs."""
    folder = tmp_path_factory.mktemp("sources")
    old = table(8, gpus=("Tesla V100-SXM2-16GB",), version=VERSIONS[0], batches=(1, 128), seed=1)
    new = table(8, gpus=("Tesla V100-SXM2-16GB", "Tesla T4"), version=VERSIONS[1], batches=(1, 128), seed=2)
    cudnn = pd.concat([old, new], ignore_index=True)
    cudnn["time_us"] *= 40.0  # some rows beyond the paper's millisecond
    cudnn.to_parquet(folder / FILES["cudnn"][0])
    partial = table(4, gpus=("TITAN Xp",), batches=(2,), algorithms=("IMPLICIT_GEMM", "WINOGRAD"))
    partial.to_parquet(folder / FILES["partial"][0])
    for place, (name, gpu) in enumerate(AMD.items()):
        amd_table(table, gpu, shapes=8 + 2 * place).to_parquet(folder / FILES[name][0])
    winners(table).to_parquet(folder / FILES["winners"][0])
    other_ops().to_parquet(folder / FILES["other_ops"][0])
    scope_ops().to_parquet(folder / FILES["scope_ops"][0])
    dense_ops().to_parquet(folder / FILES["dense"][0])
    end_to_end().to_csv(folder / FILES["end_to_end"][0], index=False)
    deepbench().to_parquet(folder / FILES["deepbench"][0])
    transformers(folder / FILES["configs"][0]).to_parquet(folder / FILES["transformers"][0])
    metadata = {"schema": SCHEMA_VERSION, "candidates": "all", "kernel": TUNED.to_plain()}
    write_table(tuned(), folder / FILES["cpu_matmul"][0], metadata)
    return Sources(folder)


TUNED = Description("tuned", ("m", "n"), {"tile": (8, 16, 32, 64), "unroll": (1, 2, 4)})


def tuned() -> pd.DataFrame:
    """All configurations on twelve sizes, the largest tile failing; the best tile grows with m."""
    rows = pd.DataFrame(
        product((16, 64, 256), (32, 128, 512, 2048), *TUNED.parameters.values()), columns=["m", "n", "tile", "unroll"]
    )
    time_us = rows["m"] * rows["n"] / 1e3 * (1 + (rows["tile"] / rows["m"] ** 0.7 - 1).abs() + 0.1 / rows["unroll"])
    fails = rows["tile"] == 64
    return rows.assign(gpu="a CPU", time_us=time_us.mask(fails), status=fails.map({True: "failed", False: "ok"}))


def amd_table(table: Callable[..., pd.DataFrame], gpu: str, shapes: int) -> pd.DataFrame:
    """A censored list: Direct with two solvers and GEMM, all ok, no heuristic named."""
    frame = table(shapes, gpus=(gpu,), batches=(1, 8), algorithms=("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM"))
    names = {"IMPLICIT_GEMM": ("Direct", "SolverA"), "IMPLICIT_PRECOMP_GEMM": ("GEMM", "SolverG")}
    frame["solver"] = [names[a][1] for a in frame["algorithm"]]
    frame["algorithm"] = [names[a][0] for a in frame["algorithm"]]
    second = frame[frame["algorithm"] == "Direct"].assign(solver="SolverB")
    second["time_us"] *= 1.3
    frame = pd.concat([frame, second], ignore_index=True).assign(library="miopen", library_version="find-db v2")
    return frame.drop(columns=["heuristic_algorithm", "networks"])


def winners(table: Callable[..., pd.DataFrame]) -> pd.DataFrame:
    """The winner's row alone, with the file's own column names."""
    frame = table(24, gpus=tuple(WINNERS.values()), algorithms=tuple(GUESSES), batches=(4,))
    frame = frame[(frame["r"] == 3) & (frame["groups"] == 1) & (frame["status"] == "ok")]
    key = ["gpu", "n", "c", "h", "k"]
    best = frame.sort_values("time_us").drop_duplicates(key).sort_index()
    best["algorithm_guess"] = best["algorithm"].map(GUESSES)
    # Small channels go to the other class, so that there is something to tell apart.
    best.loc[best["c"] < 64, "algorithm_guess"] = GUESSES["IMPLICIT_GEMM"]
    best["library_version"] = 8902
    return best.drop(columns=["library", "direction", "dtype", "math", "layout", "algorithm", "status"])


def other_ops() -> pd.DataFrame:
    """ReLUs of 40 sizes on two GPUs, each time from its elements."""
    rows = every(gpu=("Tesla T4", "Tesla V100-SXM2-16GB"), n=(1, 8), c=(16, 24, 40, 72, 200), h=(9, 14, 28, 56))
    args = [f"input[0]={n};input[1]={c};input[2]={h};input[3]={h};batch_size={n}" for _, n, c, h in rows.to_numpy()]
    rows["time_us"] = 4.0 + rows["n"] * rows["c"] * rows["h"] ** 2 / 1e5
    fixed = {"cudnn": "7.6.4", "op": "CUDNN_ACTIVATION_FWD", "variant": "ACTIVATION_RELU", "dtype": "fp32"}
    return rows[["gpu", "time_us"]].assign(args=args, **fixed)


def scope_ops() -> pd.DataFrame:
    """Both passes of tanh after 1×1 convolutions of 20 sizes, on two GPUs."""
    gpus = ("Tesla P100-SXM2-16GB", "Tesla V100-PCIE-16GB")
    rows = every(way=("FWD", "BWD"), gpu=gpus, n=(1, 2), k=(16, 64), h=(7, 13, 28, 56, 112))
    slope = rows["way"].map({"FWD": 1.0, "BWD": 1.5})
    rows["time_us"] = slope * (4.0 + rows["n"] * rows["k"] * rows["h"] ** 2 / 1e5)
    fixed = {"variant": "ACTIVATION_TANH", "dtype": "fp32", "c": 3, "r": 1, "s": 1, "pad_h": 0, "pad_w": 0}
    return rows.assign(op="CUDNN_ACTIVATION_" + rows["way"], w=rows["h"], stride_h=1, stride_w=1, **fixed)


def dense_ops() -> pd.DataFrame:
    """Products and layer norms of 36 sizes on three GPUs."""
    gpus = ("Tesla T4", "Tesla P4", "Tesla V100-PCIE-32GB")
    rows = every(op=("bmm", "ln"), gpu=gpus, B=(1, 4, 16), M=(32.0, 100.0, 300.0, 1000.0), K=(64.0, 200.0, 600.0))
    return rows.assign(N=64.0, H=rows["M"], time_us=60.0 + rows["B"] * rows["M"] * rows["K"] / 1e3)


def end_to_end() -> pd.DataFrame:
    """Two networks on two GPUs, one of them without cuDNN."""
    runs = (("TITAN X", "5105"), ("GeForce GTX 1080", "5005"), ("TITAN X", "none"))
    rows = every(run=runs, model=("alexnet", "resnet-18"))
    rows[["gpu", "cudnn"]] = rows.pop("run").tolist()
    use_cudnn, place = (rows["cudnn"] != "none").astype(int), rows.index // 2
    return rows.assign(use_cudnn=use_cudnn, batch=16, fwd_ms=8.0 + place, bwd_ms=15.0 + place)


def deepbench() -> pd.DataFrame:
    """Square products of six sizes on a V100."""
    rows = every(M=(64, 128, 256, 512, 1024, 2048))
    fixed = {"device": "NV_V100", "precision": "Float", "ta": "N", "tb": "N"}
    return rows.assign(N=rows["M"], K=rows["M"], time_ms=0.02 + rows["M"] ** 3 / 5e9, **fixed)


def transformers(folder: Path) -> pd.DataFrame:
    """Passes of a small model of every kind on two GPUs; their configurations go into ``folder``."""
    folder.mkdir()
    sizes = {"num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 1000, "hidden_size": 64}
    for kind in ("bert", "opt", "gpt2"):
        (folder / f"{kind}_small.json").write_text(json.dumps({"model_type": kind, **sizes}))
    ways = (("bert", "inf", None), ("bert", "train", None), ("opt", "inf", None), ("gpt2", "inf", "fusion"))
    return pd.DataFrame(
        [
            {"gpu": gpu, "config": f"{kind}-{mode}-{variant}", "model": f"{kind}_small", "mode": mode, "sequence": "32",
             "batch": "2", "variant": variant, "measured_ms": 1.0 + place, "neusight_ms": 1.5 + place,
             "habitat_ms": None, "micro_ms": 2.0, "roofline_ms": 0.5}
            for gpu in ("Tesla T4", "Tesla V100-PCIE-32GB")
            for place, (kind, mode, variant) in enumerate(ways)
        ]
    )  # fmt: skip


@pytest.fixture
def effort(monkeypatch: pytest.MonkeyPatch) -> Effort:
    """Quick, four models, and boosters of few rounds."""
    defaults = BoostedTerms.__init__.__defaults__
    assert defaults and BoostedTerms().rounds == defaults[0]
    monkeypatch.setattr(BoostedTerms.__init__, "__defaults__", (20, *defaults[1:]))
    return Effort(quick=True, models=("always-best-single", "roofline", "linear-terms", "boosted-terms"))
