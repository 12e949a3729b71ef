"""A folder of invented sources (test data, no measurement), and cheap models."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from experiments.effort import Effort
from experiments.sources import FILES, Sources
from surrogate.models import MODELS

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
    return Sources(folder)


def amd_table(table: Callable[..., pd.DataFrame], gpu: str, shapes: int) -> pd.DataFrame:
    """A censored list: Direct with two solvers and GEMM, all ok, no heuristic named."""
    frame = table(shapes, gpus=(gpu,), batches=(1, 8), algorithms=("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM"))
    names = {"IMPLICIT_GEMM": ("Direct", "SolverA"), "IMPLICIT_PRECOMP_GEMM": ("GEMM", "SolverG")}
    frame["solver"] = [names[a][1] for a in frame["algorithm"]]
    frame["algorithm"] = [names[a][0] for a in frame["algorithm"]]
    second = frame[frame["algorithm"] == "Direct"].assign(solver="SolverB")
    second["time_us"] *= 1.3
    frame = pd.concat([frame, second], ignore_index=True).assign(
        library="miopen", library_version="find-db v2"
    )
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


@pytest.fixture
def effort(monkeypatch: pytest.MonkeyPatch) -> Effort:
    """Quick, four models, and boosters of few rounds."""
    monkeypatch.setitem(MODELS["boosted-terms"].DEFAULTS, "rounds", 20)  # type: ignore[attr-defined]
    monkeypatch.setattr("experiments.winners_3x3.ROUNDS", 10)
    return Effort(quick=True, models=("always-best-single", "roofline", "linear-terms", "boosted-terms"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty place for README.md, tables/ and figures/."""
    return tmp_path
