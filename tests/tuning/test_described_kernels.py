"""A described kernel from training to evaluation: choices, tables, commands, and GPUs known and unknown."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.bundle.bundle import Bundle
from surrogate.bundle.train import train
from surrogate.dataset.described import KernelColumns
from surrogate.dataset.store import read_dataset
from surrogate.features.description import description_of
from surrogate.features.families import FAMILIES, DescribedFamily
from surrogate.prediction.evaluate import calibrate
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.shipped import load
from surrogate.uncertainty.domain import TrainingShapes
from surrogate.uncertainty.intervals import ALL, Widths
from tests.conftest import CommandResult
from tests.known import cases
from tests.tables import every
from tests.tuning.conftest import HOLDOUT
from tests.tuning.made_up import COLUMNS, PARAMETERS, SHAPES, VALUES, times


def test_picks_for_held_out_shapes_are_near_the_fastest(bundle: Bundle) -> None:
    """They are also faster than the configuration with the shortest mean time."""
    predictor = Predictor(bundle, gpu="v100")
    table = times(HOLDOUT, ("v100-sxm2-16gb",)).set_index(["m", "n", *PARAMETERS])["time_us"]
    best_on_average = times().groupby([*PARAMETERS])["time_us"].mean().idxmin()
    slowdowns, average_slowdowns = [], []
    for m, n in HOLDOUT:
        pick = predictor.select(f"made_up:m{m}n{n}", top=1).candidates[0].parameters or {}
        slowdowns.append(table[(m, n, *pick.values())] / table[m, n].min())
        average_slowdowns.append(table[(m, n, *best_on_average)] / table[m, n].min())
    assert np.mean(slowdowns) <= min(1.25, np.mean(average_slowdowns))


@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "the board in my desk", "v100y"])
def test_an_unmeasured_gpu_is_answered_with_a_note(bundle: Bundle, gpu: str) -> None:
    selection = Predictor(bundle, gpu=gpu).select("made_up:m1024n2048", top=3)
    assert (len(selection.candidates), selection.in_domain) == (3, False)
    notes = " ".join(selection.notes)
    assert "never measured" in notes and ("is not registered" in notes) == (gpu != "a100-sxm4-80gb")
    assert ("did you mean V100" in notes) == (gpu == "v100y")
    assert {ranked.source for ranked in selection.candidates} == {"similar-gpu"}
    assert all(ranked.lower_us < ranked.time_us < ranked.upper_us for ranked in selection.candidates)


def test_extrapolated_times_follow_the_work_and_intervals_widen(bundle: Bundle) -> None:
    """Time doubles with the work; the certainty of times and of the fastest configuration falls with the distance."""
    predictor = Predictor(bundle, gpu="v100")
    best = [predictor.select(f"m{4096 * 2**doublings}n2048", top=1) for doublings in (0, 2, 8)]
    shown = [(s.time_us, s.best.upper_us / s.best.time_us, s.best.probability_best) for s in best if s.best]
    times_us, widths, probabilities = zip(*shown, strict=True)
    assert times_us[2] / times_us[1] == pytest.approx(64, rel=0.01)
    truth = times(((4096 * 256, 2048),), ("v100-sxm2-16gb",))["time_us"].min()
    assert truth / 1.3 < times_us[2] < 1.3 * truth
    assert widths[0] < widths[1] < widths[2]
    assert probabilities[1] > probabilities[2]
    factor = exp(8 * bundle.family_models["made_up"].domain.per_doubling)
    assert 1.5 < factor < 24.5  # this kernel follows its work: its own table shows a smaller width than the default
    wider = f"so that intervals are wider, each end by a factor of {factor:.3g}"
    assert best[2].reason == f"m 1048576 lies outside the measured 64 … 4096, {wider}"
    assert best[2].reason in best[2].to_dict()["notes"][-1]
    configuration = {"block_m": 16, "block_n": 32, "warps": 4, "order": "row"}
    rows = predictor.predict(pd.DataFrame([{"m": 2**20, "n": 2048, **configuration}]))
    assert not rows.in_domain[0]
    assert rows.upper_us[0] / rows.predicted_us[0] == pytest.approx(widths[2])


def test_doublings_outside_the_measured_sizes_are_counted() -> None:
    """Below and above, the distance is the larger one of the sum over sizes and the doublings of their product."""
    family = DescribedFamily(COLUMNS.of(times(), "here"))
    measured = TrainingShapes.of(family, np.array([[64, 64], [1024, 64], [64, 1024]]))
    query = np.array([[128, 256], [2048, 128], [1024, 1024], [16, 2048], [32, 32], [0, 64]])
    assert measured.doublings_outside(query).tolist() == [[0, 0], [0, 2], [0, 4], [2, 1], [2, 0], [6, 0]]


@pytest.mark.slow
@cases(__file__)
def test_intervals_cover_the_other_half_of_the_sizes(operation: str, sizes: str, large: bool) -> None:
    """Models fitted on one half of an A100's problems predict the other half.

    Small additions take the time of a launch, which says nothing about large ones, so that case is left out.
    """
    table = pd.read_parquet("experiments/data/dense_ops.parquet").rename(columns=str.lower)
    table = table[(table["op"] == operation) & (table["gpu"] == "NVIDIA A100-PCIE-40GB")].drop_duplicates([*sizes])
    table = table.sample(200, random_state=0).astype(dict.fromkeys(sizes, int)).assign(variant=table["src"].astype(str))
    work = np.log2(table[[*sizes]]).sum(axis=1)
    small = (work <= work.median()) if large else (work > work.median())
    bundle = train(table[small], kernel=KernelColumns(("variant",), tuple(sizes), name="operation"))
    answers = Predictor(bundle).predict(table[~small][["gpu", *sizes, "variant"]])
    assert table[~small]["time_us"].between(answers.lower_us, answers.upper_us).mean() >= 0.85


def test_a_measured_problem_is_answered_by_its_measurement(bundle: Bundle) -> None:
    shape = next(shape for shape in SHAPES if shape not in HOLDOUT)
    table = times((shape,), ("our own gpu",))
    selection = Predictor(bundle, gpu="our own gpu").select(f"made_up:m{shape[0]}n{shape[1]}")
    candidates = selection.candidates
    assert replace(selection, independent_share=0.05).candidates == candidates  # measurements have independent errors
    assert len(candidates) == (table["status"] == "ok").sum() and candidates[0].source == "measured"
    assert candidates[0].time_us == pytest.approx(table["time_us"].min(), rel=1e-5)


def test_a_table_is_answered_row_by_row(bundle: Bundle) -> None:
    query = times(HOLDOUT, ("v100-sxm2-16gb",))[["gpu", "m", "n", *PARAMETERS]].sample(frac=1, random_state=0)
    unmeasured = query.head(1).assign(block_m=48)
    answers = Predictor(bundle).predict(pd.concat([query, unmeasured])).to_frame()
    assert len(answers) == len(query) + 1
    truth = query.merge(times(HOLDOUT, ("v100-sxm2-16gb",)))
    ran = (truth["status"] == "ok").to_numpy()
    assert answers["in_domain"].to_numpy()[:-1].all()
    assert not answers["in_domain"].iloc[-1] and not answers["supported"].iloc[-1]
    assert answers["notes"].iloc[-1] == ("block_m=48 was never measured",)
    assert np.isfinite(answers["predicted_us"]).all()
    covered = truth["time_us"].between(answers["lower_us"][:-1].to_numpy(), answers["upper_us"][:-1].to_numpy())
    assert covered[ran].mean() >= 0.8
    predicted = answers["predicted_us"][:-1].reset_index(drop=True)
    assert predicted[ran].corr(truth["time_us"][ran], "spearman") > 0.9


def test_folds_are_by_gpu_for_one_shape_and_by_configuration_for_one_gpu() -> None:
    assert train(times(((1024, 512),)), kernel=COLUMNS).card["held_out"]["made_up"]["intervals"][0]["shapes"] == 3
    one_gpu = train(times(((1024, 512),), ("our own gpu",)), kernel=COLUMNS)
    assert one_gpu.card["held_out"]["made_up"]["intervals"][0]["shapes"] > 20


def test_conditions_limit_the_space_and_parameters_extend_it(tmp_path: Path) -> None:
    table = times(SHAPES[:3], ("v100-sxm2-16gb",))
    first = COLUMNS.of(table, "here").to_dict() | {"parameters": {**VALUES, "block_m": [16, 32, 48, 64, 128]}}
    first["conditions"] = ["block_m * block_n <= 4096", "block_m <= m"]
    first["formulas"] = {"blocks": "ceil(m / block_m) * ceil(n / block_n)", "threads_per_block": "32 * warps"}
    selection = Predictor(train(table, kernel=description_of(first, "here")), gpu="v100").select("made_up:m64n128")
    picked = [ranked.parameters for ranked in selection.candidates if ranked.parameters]
    assert all(p["block_m"] * p["block_n"] <= 4096 and p["block_m"] <= 64 for p in picked)  # type: ignore[operator]
    assert any(p["block_m"] == 48 for p in picked)  # allowed, although it was not measured


@cases(__file__)
def test_an_invalid_table_is_refused_in_one_line(refused, columns: dict[str, Any], words: str) -> None:
    """Each row appears twice. A column without values is left out."""
    table = pd.concat([times(SHAPES[:2])] * 2, ignore_index=True)
    kept = {name: np.repeat(values, len(table) // len(values)) for name, values in columns.items() if values}
    with refused(words):
        train(table.drop(columns=[*columns], errors="ignore").assign(**kept), kernel=COLUMNS)


def test_a_file_named_like_a_family_gets_another_kernel_name(tmp_path: Path) -> None:
    path = tmp_path / "gemm.parquet"
    times(SHAPES[:2]).to_parquet(path)
    description = read_dataset(path, kernel=KernelColumns(PARAMETERS, ("m", "n"))).description
    (tmp_path / "k.toml").write_text(description.to_toml() if description else "", encoding="utf-8")
    assert read_dataset(path, kernel=tmp_path / "k.toml").description == description
    assert description and (description.name, FAMILIES["gemm"].name) == ("gemm_kernel", "gemm")


def test_a_bundle_contains_its_kernel_description(bundle_path: Path) -> None:
    served = load(bundle_path, gpu="v100")
    assert served.bundle.described_family is not None
    assert served.predict("made_up:m256n2048").time_us > 0
    text = "m256n2048"  # the bundle has one kernel, so that its name may be omitted
    mapping, table = {"m": 256, "n": 2048}, pd.DataFrame({"m": [256], "n": [2048]})
    chosen = served.select(text, top=1)
    assert served.select(mapping, top=1) == chosen
    assert served.predict(text, chosen.algorithm).time_us == pytest.approx(chosen.time_us)
    for problems in ([text], [mapping], table):
        assert served.select(problems, top=1) == [chosen]
    for problems in (mapping, [mapping], table):
        assert list(served.predict(problems).algorithm) == [served.predict(text).algorithm]
    assert COLUMNS.of(times(), "here").text(chosen.candidates[0].parameters or {}) == served.predict(text).algorithm


def test_kernels_with_the_same_name_keep_their_own_descriptions(bundle: Bundle, refused, tmp_path) -> None:
    table = every(gpu=["v100"], m=[64, 128, 256], block=[1, 2]).assign(time_us=lambda t: t["m"] * t["block"])
    train(table, sizes=["m"], parameters=["block"], name=COLUMNS.name).save(tmp_path / "B")
    other = load(tmp_path / "B", gpu="v100")
    first = Predictor(bundle, gpu="v100")
    problem = first.read("made_up:m64n512")
    min_us = times(((64, 512),), ("v100-sxm2-16gb",))["time_us"].min()
    for queries in ([problem], ["m64n512"], pd.DataFrame({"family": ["made_up"], "m": [64], "n": [512]})):
        assert first.select(queries)[0].time_us == pytest.approx(min_us, rel=1e-5)
    assert other.predict("made_up:m64").time_us == pytest.approx(64)
    with refused("made_up:m64n512 has a kernel with other sizes"):
        other.predict(problem)


@cases(__file__)
def test_an_invalid_query_is_refused_in_one_line(bundle, refused, query, options, words) -> None:
    predictor = Predictor(bundle, gpu="v100")
    with refused(words):
        (predictor.predict if "algorithm" in options else predictor.select)(query, **options)


def test_library_kernels_compete_with_configurations(seer: Callable[..., CommandResult], tmp_path: Path) -> None:
    """In this log of Inductor, cuBLAS is fastest for large products and a Triton configuration for small ones."""
    log = []
    for m, n, k in itertools.product((64, 256, 1024), (64, 512, 2048), (128, 1024)):
        entries: list[dict[str, object]] = [{"type": "cublas", "time": 1e-3 * (20 + m * n * k / 2e7)}]
        for block, warps in itertools.product((32, 128), (4, 8)):
            work = -(-m // block) * -(-n // block) * block**2 * k
            sizes = {"BLOCK_M": block, "BLOCK_N": block, "BLOCK_K": 32, "num_stages": 3, "num_warps": warps}
            entries.append({"type": "triton", "time": 1e-3 * (5 + work * (1 + warps / 80) / 1e7), **sizes})
        log.append({str((m, k, n)): entries, "kernel_type": "mm"})
    path, data, bundle = (tmp_path / name for name in ("log.json", "mm.parquet", "B"))
    path.write_text(json.dumps(log))
    seer("import", "inductor", path, "--gpu", "h100", "-o", data).succeeded()
    seer("train", data, "-o", bundle).succeeded()
    for problem, library in {"m1024n1500k1024": "cublas", "m64n100k128": "triton"}.items():
        candidates = seer("select", "--bundle", bundle, "--gpu", "h100", problem, "--json").json["candidates"]
        assert {candidate["library"] for candidate in candidates} == {"cublas", "triton"}
        assert candidates[0]["library"] == library
        assert ("parameters" in candidates[0]) == (library == "triton")


def test_two_similar_gpus_give_wide_intervals_for_a_third(tmp_path: Path) -> None:
    """Two GPUs of one architecture say little about another GPU.

    Its interval has at least a factor of 3, and at least the bundle's own factor.
    """
    v100 = times(((1024, 512),), ("v100-sxm2-16gb",))
    bundle = train(pd.concat([v100, v100.assign(gpu="v100-pcie-16gb")]), kernel=COLUMNS)
    wide = replace(bundle.family_models["made_up"], widths=Widths({ALL: 2.0}))
    for each, factor in ((bundle, 3.0), (replace(bundle, family_models={"made_up": wide}), exp(2.0))):
        best = Predictor(each, gpu="a100").select("made_up:m1024n512", top=1).candidates[0]
        assert best.upper_us / best.time_us >= 0.999 * factor


@pytest.mark.slow
def test_calibration_learns_rows_of_a_new_gpu(bundle: Bundle) -> None:
    """The rows are three times as slow as the model predicts, or two in five of them are 30 times as slow."""
    name = "a100-sxm4-80gb"
    table = times(((256, 512), (1024, 128)), (name,)).sample(40, random_state=0)
    calibrated = calibrate(bundle, table.assign(time_us=3 * table["time_us"]))
    record = calibrated.card["calibration"][name]
    measured = table[table["status"] == "ok"]
    assert record["rows_not_trained_on"] == len(measured)
    assert record["median_ape_held_out"] < record["median_ape_before"]
    assert calibrated.fitted_gpus == {*bundle.fitted_gpus, name}
    answer = Predictor(calibrated).predict(measured.head(1)).predicted_us
    assert answer[0] == pytest.approx(3 * measured["time_us"].iloc[0], rel=1e-5)
    with pytest.warns(UserWarning, match="worse after calibration"):
        calibrate(
            bundle, measured.assign(time_us=measured["time_us"] * np.where(np.arange(len(measured)) % 5 < 2, 30, 1))
        )
