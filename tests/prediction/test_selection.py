"""`Selection`: the order, what is excluded and why, limits, versions and GPUs that training did not see."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from surrogate.bundle.bundle import Bundle, HarnessFloor, load, save
from surrogate.bundle.train import train
from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import rows_of
from surrogate.dataset.store import as_dataset
from surrogate.features.algorithms import algorithms
from surrogate.features.conv import Conv
from surrogate.models import Support
from surrogate.models.interpolated import InterpolatedTerms
from surrogate.models.json_types import key_text
from surrogate.models.launch import CallKey
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.results import parse_bytes
from surrogate.uncertainty.intervals import HeldOutGpuErrors, UnseenGpu
from tests.prediction.conftest import bundle_of
from tests.prediction.problems import CONV, CONVS, STRIDED, frame_of


def test_selection_ranks_and_says_what_is_excluded(predictor: Predictor) -> None:
    found = predictor.select(CONV)
    times = [one.time_us for one in found.candidates]
    assert times == sorted(times) and found.time_us == times[0] and found.algorithm == found.candidates[0].algorithm
    assert all(one.lower_us < one.time_us < one.upper_us and one.source == "model" for one in found.candidates)
    assert sum(one.probability_best for one in found.candidates) == pytest.approx(1.0)
    reasons = {one.algorithm: one.reason for one in found.excluded}
    assert reasons["DIRECT"] == "no release implements it"
    assert "never measured" in reasons["GEMM"]
    assert {one.algorithm for one in found.candidates} | set(reasons) == {a.name for a in algorithms("cudnn")}
    assert found.in_domain and found.reason is None


def test_the_library_refuses(predictor: Predictor) -> None:
    reasons = {one.algorithm: one.reason for one in predictor.select(STRIDED).excluded}
    # Nothing like it was measured: the rules speak.
    assert reasons["WINOGRAD"] == "stride must be 1" and reasons["FFT"] == "stride must be 1"
    pointwise = Conv(n=8, c=16, h=14, k=32, r=1, stride_h=1)
    assert predictor.predict(pointwise, "WINOGRAD").supported is False
    assert "3×3" in str(predictor.predict(pointwise, "WINOGRAD").reason)


def test_what_never_ran_is_told_apart_from_a_version_that_refuses(bundle: Bundle, frame: pd.DataFrame) -> None:
    def refused(mask: pd.Series) -> dict[str, str]:
        changed = frame.copy()
        changed.loc[mask & (changed.algorithm == "IMPLICIT_GEMM"), "status"] = "not_supported"
        support = Support.fit(rows_of(normalise(changed, "changed")))
        served = Predictor(_with(bundle, support=support), gpu="v100")
        return {one.algorithm: one.reason for one in served.select(CONV).excluded}

    everywhere = refused(pd.Series(True, index=frame.index))
    assert "never ran in the training data" in everywhere["IMPLICIT_GEMM"]
    here = (frame.gpu == "Tesla V100-SXM2-16GB") & (frame.library_version == "7.6.3")
    assert "cudnn 7.6.3 refused" in refused(here & frame.index.isin(frame.index))["IMPLICIT_GEMM"]


def test_the_workspace_limit_is_told_in_bytes(predictor: Predictor) -> None:
    all_ = predictor.select(CONV)
    largest = max(one.workspace_bytes for one in all_.candidates)
    limited = predictor.select(CONV, workspace_limit=largest - 1)
    reasons = [one.reason for one in limited.excluded if "workspace" in one.reason]
    assert len(reasons) == 1 and f"needs {largest} bytes" in reasons[0] and str(largest - 1) in reasons[0]
    assert predictor.select(CONV, workspace_limit=largest).estimates == all_.estimates


def test_nondeterministic_algorithms_are_excluded(refused, table: Callable[..., pd.DataFrame]) -> None:
    frame = table(8, algorithms=("IMPLICIT_GEMM", "FFT")).assign(direction="bwd_data")
    frame["algorithm"] = frame["algorithm"].map({"IMPLICIT_GEMM": "ALGO_0", "FFT": "ALGO_1"})
    served = Predictor(bundle_of(frame), gpu="t4")
    conv = replace(CONV, direction="bwd_data")
    assert {one.algorithm for one in served.select(conv).candidates} == {"ALGO_0", "ALGO_1"}
    found = served.select(conv, deterministic=True)
    assert [one.algorithm for one in found.candidates] == ["ALGO_1"] and found.candidates[0].deterministic
    assert "nondeterministic" in {one.algorithm: one.reason for one in found.excluded}["ALGO_0"]
    with refused("fwd"):
        served.select(CONV)


def test_nothing_feasible_is_an_empty_selection(refused, predictor: Predictor, bundle: Bundle) -> None:
    nothing = Predictor(refusing(bundle), gpu="v100")
    found = nothing.select(CONV)
    assert found.candidates == () and found.algorithm is None and found.time_us is None and found.best is None
    assert "nothing is feasible" in repr(found) and found.to_dict()["candidates"] == []
    with refused("no algorithm runs"):
        nothing.predict(CONV)
    table = nothing.predict(frame_of([CONV], ["FFT"]).drop(columns="algorithm"))
    assert np.isnan(table.predicted_us[0]) and table.algorithm[0] == "" and not table.supported[0]


def refusing(bundle: Bundle) -> Bundle:
    """The bundle with nothing that it supports."""
    support = bundle.parts["conv"].support
    none = (dict.fromkeys(table, 0.0) for table in (support.exact, support.general))
    return _with(bundle, support=Support(*none))


def _with(bundle: Bundle, **changed: object) -> Bundle:
    """The bundle with another part of convolutions."""
    return replace(bundle, parts={"conv": replace(bundle.parts["conv"], **changed)})  # type: ignore[arg-type]


@given(low=st.integers(0, 10**6), more=st.integers(0, 10**6), conv=CONVS)
@settings(max_examples=40)
def test_a_larger_workspace_is_never_slower(predictor: Predictor, low: int, more: int, conv: Conv) -> None:
    def time_us(limit: int) -> float:
        return predictor.select(conv, workspace_limit=limit).time_us or math.inf

    assert time_us(low + more) <= time_us(low)


@given(conv=CONVS, top=st.integers(1, 9))
@settings(max_examples=40)
def test_top_is_a_prefix(predictor: Predictor, conv: Conv, top: int) -> None:
    first = predictor.select(conv, top=top).candidates
    assert first == predictor.select(conv).candidates[:top]  # probabilities count those that are left out


def test_an_unseen_version_is_accepted_out_of_domain(predictor: Predictor) -> None:
    assert predictor.select(CONV).library_version == "7.6.3"  # the newest
    found = predictor.select(CONV, library_version="9.1.0")
    assert found.library_version == "9.1.0" and found.estimates
    assert not found.in_domain and "9.1.0" in str(found.reason)
    assert predictor.select(CONV, library_version="7.5.0").in_domain


def test_an_unseen_gpu_is_answered_from_its_specification(bundle: Bundle) -> None:
    """Half widths are those of the maker's GPUs in the type; the answer says how far off such answers were."""
    kinds = {
        "": HeldOutGpuErrors(4, 0.3, 3.0),
        "nvidia": HeldOutGpuErrors(3, 0.3, 2.0),
        "nvidia|fp32": HeldOutGpuErrors(3, 0.21, 0.7),
    }
    unseen = _with(bundle, unseen_gpu=UnseenGpu(kinds, 0.5))
    found = Predictor(unseen, gpu="titan-xp").select(CONV)
    assert not found.in_domain and {one.source for one in found.candidates} == {"datasheet"} == {found.source}
    assert "21 %" in found.notes[0] and found.notes[0] in found.to_dict()["notes"] and found.independent_share == 0.5
    assert Predictor(bundle, gpu="t4").select(CONV).notes == ()
    assert {one.half_width for one in found.estimates} == {0.7}
    assert {one.half_width for one in Predictor(unseen, gpu="mi60").select(CONV).estimates} == {3.0}


TEXT = "n8c16h14k16r3p1"


@pytest.mark.parametrize(
    ("gpu", "version", "math"),
    [("titan-xp", "7.6.3", "fma"), ("a100-sxm4-80gb", "8+", "default"), ("b200", "9+", "default")],
)
def test_no_release_answers_on_a_gpu_that_it_does_not_run_on(
    refused, bundle: Bundle, gpu: str, version: str, math: str
) -> None:
    """And a text's math is PyTorch's default there: TF32 for fp32 convolutions where there is any."""
    predictor_ = Predictor(bundle, gpu=gpu)
    found = predictor_.select(TEXT)
    assert (found.library_version, found.problem.math) == (version, math)
    assert predictor_.predict({"n": [8], "c": [16], "h": [14], "k": [16], "r": [3], "pad_h": [1]}).time_us == [
        found.time_us
    ]
    if version != "7.6.3":
        with refused("does not run on"):
            predictor_.select(TEXT, library_version="7.6.3")


def test_tf32_speeds_up_only_what_has_tensor_kernels(bundle: Bundle) -> None:
    predictor_ = Predictor(bundle, gpu="a100-sxm4-80gb")
    plain, tf32 = (
        {
            one.algorithm: one.time_us
            for one in predictor_.select(Conv(n=64, c=256, h=28, k=256, r=3, math=math)).candidates
        }
        for math in ("fma", "default")
    )
    assert plain.keys() == tf32.keys() and tf32["IMPLICIT_PRECOMP_GEMM"] < plain["IMPLICIT_PRECOMP_GEMM"]
    assert {name for name in plain if plain[name] != tf32[name]} == {"IMPLICIT_PRECOMP_GEMM"}


def test_documented_rules_of_a_gpu_count_before_statuses_of_others(bundle: Bundle) -> None:
    half = Conv(n=8, c=16, h=14, k=16, r=3, dtype="bf16", math="tensor_op")
    assert not Predictor(bundle, gpu="t4").select(half).estimates
    assert Predictor(bundle, gpu="a100-sxm4-80gb").select(half).estimates
    refused = dict(Predictor(bundle, gpu="h100-sxm").select(CONV).excluded)
    assert "WINOGRAD" in refused and "WINOGRAD" not in dict(Predictor(bundle, gpu="t4").select(CONV).excluded)


def test_no_time_is_below_the_least_that_was_measured(bundle: Bundle) -> None:
    floors = {CallKey("t4", "cudnn"): 500.0, CallKey("", "cudnn"): 300.0}
    for gpu, minimum in (("t4", 500.0), ("titan-xp", 300.0)):
        predictor_ = Predictor(_with(bundle, min_us=floors), gpu=gpu)
        table = predictor_.predict({"n": [1], "c": [1], "h": [1], "k": [1], "r": [1]})
        assert predictor_.predict("n1c1h1k1r1").time_us == table.time_us[0] == minimum


def test_json_is_the_contract(predictor: Predictor) -> None:
    found = json.loads(json.dumps(predictor.select(CONV, workspace_limit=10**5).to_dict()))
    assert list(found) == ["problem", "gpu", "library_version", "source", "notes", "candidates", "excluded"]
    assert found["problem"] == "n8c16h14w14k16r3s3p1u1"
    assert (found["gpu"], found["library_version"]) == ("v100-sxm2-16gb", "7.6.3")
    assert list(found["candidates"][0]) == [
        "algorithm",
        "library",
        "time_us",
        "lower_us",
        "upper_us",
        "workspace_bytes",
        "deterministic",
        "source",
        "probability_best",
    ]
    assert all(list(row) == ["algorithm", "reason"] for row in found["excluded"])


def test_results_show_themselves(predictor: Predictor) -> None:
    found, one = predictor.select(CONV), predictor.predict(CONV)
    assert repr(found).startswith("n8c16h14w14k16r3s3p1u1 fwd fp32 fma NCHW on v100-sxm2-16gb")
    odd = replace(found, library_version="<b>&")
    assert "<b>" not in odd._repr_html_() and "&lt;b&gt;&amp;" in odd._repr_html_()
    assert one.algorithm in repr(one) and one.to_dict()["problem"] == str(CONV)
    many = predictor.predict(frame_of([CONV] * 4, ["FFT", "IMPLICIT_GEMM"]))
    assert "… 8 rows" in repr(many) and list(many.to_frame().columns) == list(many.to_dict())


def test_sizes_in_bytes() -> None:
    known = {"1048576": 2**20, "64MiB": 2**26, "1GB": 10**9, "1.5 GiB": 3 * 2**29, "0": 0, "2k": 2000, " 8 kb ": 8000}
    known |= {"0.5kib": 512, "1TiB": 2**40}
    assert {text: parse_bytes(text) for text in known} == known


@pytest.mark.parametrize("text", ["", "-1", "1e9", "64 miles", "MiB", "1,5GB", "0x10", "1 2", "9" * 30, "inf"])
def test_other_sizes_are_refused(refused, text: str) -> None:
    with refused("64MiB"):
        parse_bytes(text)


def test_a_table_gets_one_selection_for_each_distinct_problem(bundle: Bundle, predictor: Predictor) -> None:
    """Whatever holds the columns; rows of several GPUs are answered each by its own."""
    problems = list(dict.fromkeys(Conv(n=n, c=c, h=14, k=32, r=3, pad_h=1) for n in (8, 1) for c in (64, 16, 32)))
    table = pd.DataFrame([problem.to_dict() for problem in [*problems, *problems[::-1]]])
    expected = predictor.select(problems, workspace_limit="1MiB")
    for form in (table, table.to_dict("list"), table[["n", "c", "h", "k", "r", "pad_h"]].to_records(index=False)):
        assert predictor.select(form, workspace_limit="1MiB") == expected
    both = pd.concat([table.assign(gpu="t4"), table.assign(gpu="v100")])
    by_gpu = Predictor(bundle).select(both)
    assert [(s.problem, s.gpu) for s in by_gpu] == [
        (problem, gpu) for gpu in ("t4", "v100-sxm2-16gb") for problem in problems
    ]
    assert by_gpu[len(problems) :] == predictor.select(problems)


def products(names_of: Mapping[str, Sequence[str]], dtype: str = "bf16", cost_us: float = 2.0) -> pd.DataFrame:
    """Times of products by the kernels of each GPU: small is faster up to m 100, the others beyond."""
    rows = [
        {"gpu": gpu, "algorithm": name, "m": m, "n": n, "k": k, "time_us": factor * (cost_us + 1e-7 * m * n * k / 64)}
        for gpu, names in names_of.items()
        for name in names
        for m in (16, 256, 4096)
        for n in (512, 1024, 2048)
        for k in (512, 2048)
        for factor in [1.3 if (name == "small") == (m > 100) else 1.0]
    ]
    setting = {"family": "gemm", "operator": "gemm", "dtype": dtype, "math": "default", "variant": "", "batch": 1}
    return pd.DataFrame(rows).assign(library="vllm", library_version="1", status="ok", **setting)


def served_on(frame: pd.DataFrame, gpu: str) -> Predictor:
    return Predictor(bundle_of(frame, InterpolatedTerms(rounds=20, max_leaves=8)), gpu=gpu)


def test_a_gpu_never_measured_follows_one_of_its_architecture() -> None:
    """Where the best candidate changes with the size on the sibling, it changes alike; others' candidates stay out."""
    frame = products({"h100-sxm": ("small", "large"), "b200": ("large", "newer")})
    for gpu, is_lent in (("gh200", True), ("h20", False)):
        served = served_on(frame, gpu)
        for m, best in ((16, "small"), (4096, "large")):
            selection = served.select(served.read(f"gemm:m{m}n1024k2048", dtype="bf16", math="default"))
            assert {ranked.algorithm for ranked in selection.candidates} == {"small", "large"}
            assert selection.source == ("similar-gpu" if is_lent else "datasheet")
            assert any("h100-sxm" in note for note in selection.notes) == is_lent
            assert selection.algorithm == best or not is_lent  # H20's peak is a seventh, its bandwidth a fifth more


def test_a_kernel_below_its_harness_s_floor_does_not_win(tmp_path: Path) -> None:
    """Its time is no better known than the floor, alone or in a table; where it was timed it competes."""
    frame = products({"h100-sxm": ("small", "large"), "h200-sxm": ("small", "large")})
    record = {"gpu": "h100-sxm", "library": "vllm", "algorithm": "small", "operator": "gemm", "dtype": "bf16"}
    data = replace(as_dataset(frame), metadata={"floors": [{**record, "floor_us": 4.0, "limit_us": 8.0, "rows": 9}]})
    save(train(data, model="interpolated-terms", params={"rounds": 20, "max_leaves": 8}), tmp_path / "bundle")
    stored = load(tmp_path / "bundle")
    assert stored.parts["gemm"].floors == (
        HarnessFloor("h100-sxm", "vllm", "small", {"operator": "gemm", "dtype": "bf16"}, 8.0),
    )
    predictor_ = {"dtype": "bf16", "math": "default"}
    for gpu, m, names in (
        ("h100-sxm", 16, ["large"]),
        ("h200-sxm", 16, ["small", "large"]),
        ("h100-sxm", 4096, ["large", "small"]),
    ):
        served = Predictor(stored, gpu=gpu)
        selection = served.select(served.read(f"gemm:m{m}n1024k2048", **predictor_))
        assert [ranked.algorithm for ranked in selection.candidates] == names
        assert [(each.algorithm, "8 µs" in each.reason) for each in selection.excluded] == [("small", True)] * (
            len(names) == 1
        )
    served = Predictor(stored, gpu="h100-sxm")
    alone = served.predict(served.read("gemm:m16n1024k2048", **predictor_), "small")
    assert alone.source == "floor" and alone.upper_us >= 8.0
    here = frame[frame["gpu"] == "h100-sxm"].reset_index(drop=True)
    answers = served.predict(here.drop(columns=["time_us", "status"]))
    is_small = (here["algorithm"] == "small") & (here["time_us"] < 7.0)
    assert is_small.any() and not answers.in_domain[is_small].any() and (answers.upper_us[is_small] >= 8.0).all()


def test_a_sibling_lends_what_a_call_costs() -> None:
    """H800 is an H100 in all that products use, so that its times are the H100's, whatever calls cost on B200."""
    frame = pd.concat([products({"h100-sxm": ("small",)}), products({"b200": ("small",)}, cost_us=40.0)])
    served = served_on(frame, "h800")
    assert (frame["gpu"] == "h100-sxm").any()
    for row in frame[frame["gpu"] == "h100-sxm"].itertuples():
        predictor_ = served.read(f"gemm:m{row.m}n{row.n}k{row.k}", dtype="bf16", math="default")
        assert served.predict(predictor_).time_us == pytest.approx(row.time_us, rel=0.005)


def test_one_row_without_an_answer_leaves_the_others_theirs(refused) -> None:
    """A candidate that another GPU alone ran is answered from there; one of another type is not supported."""
    frame = pd.concat(
        [
            products({"h100-sxm": ("small", "large"), "h200-sxm": ("small", "older"), "b200": ("newer",)}),
            products({"b200": ("quick",)}, dtype="fp8"),
        ]
    )
    served = served_on(frame, "gh200")
    setting = frame.iloc[[0]].drop(columns=["gpu", "algorithm", "status", "time_us"])
    table = pd.concat([setting.assign(algorithm=name) for name in ("small", "older", "newer", "quick")])
    answers = served.predict(table.assign(m=256, gpu="gh200"))
    assert list(answers.supported) == [True, True, True, False]
    assert np.isfinite(answers.predicted_us).tolist() == [True, True, True, False]
    predictor_ = served.read("gemm:m256n512k512", dtype="bf16", math="default")
    assert served.predict(predictor_, "older").time_us == pytest.approx(answers.predicted_us[1])
    assert served.predict(predictor_).algorithm in ("small", "large")
    with refused("did you mean small"):
        served.predict(table.assign(m=256, gpu="gh200", algorithm="smal"))


@pytest.mark.parametrize(("source", "best"), [("model", "large"), ("habit", "newer"), ("nearest", "large")])
def test_the_average_rank_answers_if_training_chose_it(source: str, best: str) -> None:
    """RTX PRO 6000 has no GPU of its architecture here. Bundles of 0.3.0 may say "nearest", which the model answers."""
    frame = products({"a100-sxm4-80gb": ("small", "large", "newer"), "h100-sxm": ("large", "newer")})
    slow = frame["algorithm"].map({"small": 1.0, "large": 1.0, "newer": 1.2})
    bundle = bundle_of(frame.assign(time_us=frame["time_us"] * slow), InterpolatedTerms(rounds=20, max_leaves=8))
    part = bundle.parts["gemm"]
    cost_of = {"large": 0.2, "newer": 0.1, "small": 0.3}
    labels = part.times.neighbours.grid.labels
    costs = {key_text(label): cost_of[label.candidate.rpartition("|")[2]] for label in labels}
    unseen = structs.replace(part.unseen_gpu, ranking_source=source, average_rank=costs)
    served = Predictor(replace(bundle, parts={"gemm": replace(part, unseen_gpu=unseen)}), gpu="rtx-pro-6000-server")
    selection = served.select(served.read("gemm:m16n1024k2048", dtype="bf16", math="default"))
    assert selection.source == "datasheet"
    assert any("order" in note for note in selection.notes) == (source == "habit")
    if source == "habit":
        assert selection.algorithm == best
    together = served.predict(selection.problem)
    assert (together.algorithm, together.time_us) == (selection.algorithm, selection.time_us)
