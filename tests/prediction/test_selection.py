"""Tests of `Selection`: order, excluded candidates with reasons, limits, and versions and GPUs unknown to training."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from msgspec import structs

from surrogate.bundle.bundle import Bundle, HarnessFloor, load, save
from surrogate.bundle.train import train
from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import rows_of
from surrogate.dataset.store import as_dataset
from surrogate.features.algorithms import algorithms
from surrogate.features.conv import Conv
from surrogate.models import Support
from surrogate.models.call_cost import CallKey
from surrogate.models.interpolated import InterpolatedTerms
from surrogate.models.json_types import key_text
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.results import Selection, parse_bytes
from surrogate.prediction.shipped import select
from surrogate.uncertainty.intervals import HeldOutGpuErrors, UnmeasuredGpuErrors
from tests.known import cases, known_answers
from tests.prediction.conftest import bundle_of
from tests.prediction.problems import CONV, CONVS, STRIDED, frame_of
from tests.tables import every


def test_a_selection_ranks_candidates_by_time_and_names_the_excluded_ones(predictor: Predictor) -> None:
    found = predictor.select(CONV)
    times = [candidate.time_us for candidate in found.candidates]
    assert times == sorted(times)
    assert (found.time_us, found.algorithm) == (times[0], found.candidates[0].algorithm)
    assert all(candidate.lower_us < candidate.time_us < candidate.upper_us for candidate in found.candidates)
    assert {candidate.source for candidate in found.candidates} == {"model"}
    assert sum(candidate.probability_best for candidate in found.candidates) == pytest.approx(1.0)
    assert found.in_domain and found.reason is None
    reasons = dict(found.excluded)
    assert reasons["DIRECT"] == "no release implements it"
    assert "never measured" in reasons["GEMM"]
    names = {candidate.algorithm for candidate in found.candidates}
    assert names | set(reasons) == {algorithm.name for algorithm in algorithms("cudnn")}


def test_documented_rules_exclude_algorithms_of_unmeasured_shapes(predictor: Predictor) -> None:
    reasons = dict(predictor.select(STRIDED).excluded)
    assert reasons["WINOGRAD"] == "stride must be 1" and reasons["FFT"] == "stride must be 1"
    pointwise = Conv(n=8, c=16, h=14, k=32, r=1, stride_h=1)
    assert predictor.predict(pointwise, "WINOGRAD").supported is False
    assert "3×3" in str(predictor.predict(pointwise, "WINOGRAD").reason)


def test_the_reason_says_whether_a_version_refused_or_nothing_ever_ran(bundle: Bundle, frame: pd.DataFrame) -> None:
    def reasons_if_refused(mask: pd.Series) -> dict[str, str]:
        changed = frame.copy()
        changed.loc[mask & (changed.algorithm == "IMPLICIT_GEMM"), "status"] = "not_supported"
        support = Support.fit(rows_of(normalise(changed, "changed")))
        served = Predictor(_with(bundle, support=support), gpu="v100")
        return dict(served.select(CONV).excluded)

    everywhere = reasons_if_refused(pd.Series(True, index=frame.index))
    assert "never ran in the training data" in everywhere["IMPLICIT_GEMM"]
    on_one_version = (frame.gpu == "Tesla V100-SXM2-16GB") & (frame.library_version == "7.6.3")
    assert "cudnn 7.6.3 refused" in reasons_if_refused(on_one_version)["IMPLICIT_GEMM"]


def test_the_reason_names_the_workspace_and_its_limit_in_bytes(predictor: Predictor) -> None:
    unlimited = predictor.select(CONV)
    largest = max(candidate.workspace_bytes for candidate in unlimited.candidates)
    limited = predictor.select(CONV, workspace_limit=largest - 1)
    (reason,) = [excluded.reason for excluded in limited.excluded if "workspace" in excluded.reason]
    assert f"needs {largest} bytes" in reason and str(largest - 1) in reason
    assert predictor.select(CONV, workspace_limit=largest).estimates == unlimited.estimates


def test_nondeterministic_algorithms_are_excluded(refused, table: Callable[..., pd.DataFrame]) -> None:
    frame = table(8, algorithms=("IMPLICIT_GEMM", "FFT")).assign(direction="bwd_data")
    frame["algorithm"] = frame["algorithm"].map({"IMPLICIT_GEMM": "ALGO_0", "FFT": "ALGO_1"})
    served = Predictor(bundle_of(frame), gpu="t4")
    conv = replace(CONV, direction="bwd_data")
    assert {candidate.algorithm for candidate in served.select(conv).candidates} == {"ALGO_0", "ALGO_1"}
    found = served.select(conv, deterministic=True)
    assert [(candidate.algorithm, candidate.deterministic) for candidate in found.candidates] == [("ALGO_1", True)]
    assert "nondeterministic" in dict(found.excluded)["ALGO_0"]
    with refused("fwd"):
        served.select(CONV)


def test_the_tables_own_workspaces_and_determinism_decide(table: Callable[..., pd.DataFrame], tmp_path: Path) -> None:
    """A measured problem has its row's workspace; a workspace or a determinism that nothing states is unknown."""
    frame = table(8, algorithms=("IMPLICIT_GEMM", "GEMM")).assign(library="mycc", library_version="1")
    frame["algorithm"] = frame["algorithm"].map({"IMPLICIT_GEMM": "split", "GEMM": "plain"})
    is_split = frame["algorithm"] == "split"
    frame = frame.assign(workspace_bytes=np.where(is_split, 1000 + frame["k"], 0), deterministic=~is_split)
    bundle_of(frame).save(tmp_path / "own")
    for served in (Predictor(bundle_of(frame), gpu="t4"), Predictor(load(tmp_path / "own"), gpu="t4")):
        (row, *_) = frame[is_split & (frame["gpu"] == "Tesla T4")].to_dict("records")
        measured = Conv(**{each.name: row[each.name] for each in fields(Conv)})
        new = replace(measured, k=measured.k + 3)
        sizes = [{c.algorithm: c.workspace_bytes for c in served.select(each).candidates} for each in (measured, new)]
        assert sizes == [{"split": 1000 + measured.k, "plain": 0}, {"split": None, "plain": 0}]
        for limits in ({"deterministic": True}, {"workspace_limit": 999 + measured.k}):
            assert served.select(measured, **limits).algorithm == "plain"
        assert "unknown" in dict(served.select(new, workspace_limit="1GiB").excluded)["split"]
    own = Predictor(bundle_of(frame.assign(gpu="a100")))  # PyTorch's default on it is TF32
    found = own.select(str(measured))
    assert found.problem.math == "fma" and found.in_domain and "the only one" in found.notes[0]
    unstated = Predictor(bundle_of(frame.drop(columns=["workspace_bytes", "deterministic"])), gpu="t4").select(measured)
    assert {(c.workspace_bytes, c.deterministic) for c in unstated.candidates} == {(None, None)}
    miopen = select("n32c256h14k256r3p1", gpu="mi300x", deterministic=True)
    assert not miopen.estimates and repr(miopen).count("leave out deterministic") == 1  # one line for all solvers
    product = select("gemm:m4096n4096k4096", gpu="h100-sxm", dtype="bf16", workspace_limit="64MiB")
    assert not product.estimates and repr(product).count("leave out the workspace limit to rank it") == 1


def test_a_selection_without_feasible_candidates_is_empty(refused, predictor: Predictor, bundle: Bundle) -> None:
    refuser = Predictor(refusing(bundle), gpu="v100")
    found = refuser.select(CONV)
    assert found.candidates == ()
    assert (found.best, found.algorithm, found.time_us) == (None, None, None)
    assert "nothing is feasible" in repr(found) and found.to_dict()["candidates"] == []
    with refused("no algorithm runs"):
        refuser.predict(CONV)
    table = refuser.predict(frame_of([CONV], ["FFT"]).drop(columns="algorithm"))
    assert np.isnan(table.predicted_us[0])
    assert table.algorithm[0] == "" and not table.supported[0]


def refusing(bundle: Bundle) -> Bundle:
    """Return the bundle with every candidate unsupported."""
    support = bundle.family_models["conv"].support
    unsupported = (dict.fromkeys(table, 0.0) for table in (support.exact, support.general))
    return _with(bundle, support=Support(*unsupported))


def _with(bundle: Bundle, **changed: object) -> Bundle:
    """Return the bundle with changes in its model of convolutions."""
    return replace(bundle, family_models={"conv": replace(bundle.family_models["conv"], **changed)})  # type: ignore[arg-type]


@given(low=st.integers(0, 10**6), more=st.integers(0, 10**6), conv=CONVS)
@settings(max_examples=40)
def test_a_larger_workspace_is_never_slower(predictor: Predictor, low: int, more: int, conv: Conv) -> None:
    def time_us(limit: int) -> float:
        return predictor.select(conv, workspace_limit=limit).time_us or math.inf

    assert time_us(low + more) <= time_us(low)


@given(conv=CONVS, top=st.integers(1, 9))
@settings(max_examples=40)
def test_top_returns_the_first_candidates(predictor: Predictor, conv: Conv, top: int) -> None:
    first = predictor.select(conv, top=top).candidates
    assert first == predictor.select(conv).candidates[:top]  # also with the probabilities of the full ranking


def test_an_unmeasured_gpu_is_answered_from_its_datasheet(bundle: Bundle) -> None:
    """Half widths come from held-out GPUs of the same vendor and type; a note states their median error."""
    errors = {"": (4, 0.3, 3.0), "nvidia": (3, 0.3, 2.0), "nvidia|fp32": (3, 0.21, 0.7)}
    errors_of_kind = {kind: HeldOutGpuErrors(*values) for kind, values in errors.items()}
    unseen = _with(bundle, unmeasured_gpu=UnmeasuredGpuErrors(errors_of_kind, 0.5))
    found = Predictor(unseen, gpu="titan-xp").select(CONV)
    assert not found.in_domain and found.independent_share == 0.5
    assert {candidate.source for candidate in found.candidates} == {"datasheet"} == {found.source}
    assert "21 %" in found.notes[0] and found.notes[0] in found.to_dict()["notes"]
    assert Predictor(bundle, gpu="t4").select(CONV).notes == ()
    assert {estimate.half_width for estimate in found.estimates} == {0.7}
    assert {estimate.half_width for estimate in Predictor(unseen, gpu="mi60").select(CONV).estimates} == {3.0}


TEXT = "n8c16h14k16r3p1"


@cases(__file__)
def test_the_version_and_the_math_suit_the_gpu(refused, bundle: Bundle, gpu: str, version: str, math: str) -> None:
    """PyTorch uses TF32 for fp32 convolutions if the GPU has it; "default" means that."""
    served = Predictor(bundle, gpu=gpu)
    found = served.select(TEXT)
    assert (found.library_version, found.problem.math) == (version, math)
    (row,) = served.predict({"n": [8], "c": [16], "h": [14], "k": [16], "r": [3], "pad_h": [1]}).time_us
    assert row == found.time_us
    if version != "7.6.3":
        with refused("does not run on"):
            served.select(TEXT, library_version="7.6.3")


def test_tf32_speeds_up_only_algorithms_with_tensor_core_kernels(bundle: Bundle) -> None:
    served = Predictor(bundle, gpu="a100-sxm4-80gb")
    conv = Conv(n=64, c=256, h=28, k=256, r=3)
    fp32, tf32 = (
        {best.algorithm: best.time_us for best in served.select(replace(conv, math=math)).candidates}
        for math in ("fma", "default")
    )
    assert fp32.keys() == tf32.keys() and tf32["IMPLICIT_PRECOMP_GEMM"] < fp32["IMPLICIT_PRECOMP_GEMM"]
    assert {name for name in fp32 if fp32[name] != tf32[name]} == {"IMPLICIT_PRECOMP_GEMM"}


def test_a_gpus_documented_rules_override_statuses_of_other_gpus(bundle: Bundle) -> None:
    half = Conv(n=8, c=16, h=14, k=16, r=3, dtype="bf16", math="tensor_op")
    assert not Predictor(bundle, gpu="t4").select(half).estimates
    assert Predictor(bundle, gpu="a100-sxm4-80gb").select(half).estimates
    assert "WINOGRAD" in dict(Predictor(bundle, gpu="h100-sxm").select(CONV).excluded)
    assert "WINOGRAD" not in dict(Predictor(bundle, gpu="t4").select(CONV).excluded)


def test_no_time_is_below_the_shortest_measured_time(bundle: Bundle) -> None:
    floors = {CallKey("t4", "cudnn"): 500.0, CallKey("", "cudnn"): 300.0}
    for gpu, minimum in (("t4", 500.0), ("titan-xp", 300.0)):
        served = Predictor(_with(bundle, min_us=floors), gpu=gpu)
        table = served.predict({"n": [1], "c": [1], "h": [1], "k": [1], "r": [1]})
        assert served.predict("n1c1h1k1r1").time_us == table.time_us[0] == minimum


def test_json_has_the_documented_keys(predictor: Predictor) -> None:
    found = json.loads(json.dumps(predictor.select(CONV, workspace_limit=10**5).to_dict()))
    names = known_answers(__file__)["json"]
    assert [list(found), list(found["candidates"][0]), list(found["excluded"][0])] == [*names.values()]
    assert [found[name] for name in names["selection"][:3]] == ["n8c16h14w14k16r3s3p1u1", "v100-sxm2-16gb", "7.6.3"]


def test_results_have_text_and_html_representations(predictor: Predictor) -> None:
    found, single = predictor.select(CONV), predictor.predict(CONV)
    assert repr(found).startswith("n8c16h14w14k16r3s3p1u1 fwd fp32 fma NCHW on v100-sxm2-16gb")
    odd = replace(found, library_version="<b>&")
    assert "<b>" not in odd._repr_html_() and "&lt;b&gt;&amp;" in odd._repr_html_()
    assert single.algorithm in repr(single) and single.to_dict()["problem"] == str(CONV)
    many = predictor.predict(frame_of([CONV] * 4, ["FFT", "IMPLICIT_GEMM"]))
    assert "… 8 rows" in repr(many) and list(many.to_frame().columns) == list(many.to_dict())


def test_sizes_are_read_in_decimal_and_binary_units_or_refused(refused) -> None:
    expected = known_answers(__file__)["sizes"]
    assert expected and {text: parse_bytes(text) for text in expected} == expected
    for text in ("", "-1", "1e9", "64 miles", "MiB", "1,5GB", "0x10", "1 2", "9" * 30, "inf"):
        with refused("64MiB"):
            parse_bytes(text)


def test_a_table_gets_one_selection_for_each_row(bundle: Bundle, predictor: Predictor) -> None:
    """Rows with a GPU are answered for that GPU."""
    problems = list(dict.fromkeys(Conv(n=n, c=c, h=14, k=32, r=3, pad_h=1) for n in (8, 1) for c in (64, 16, 32)))
    problems += problems[::-1]
    table = pd.DataFrame([problem.to_dict() for problem in problems])
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
    """Return times of products by the kernels of each GPU: `small` is fastest for m below 100, the others above."""
    kernels = pd.DataFrame({"gpu": list(names_of), "algorithm": list(names_of.values())}).explode("algorithm")
    rows = kernels.merge(every(m=(16, 256, 4096), n=(512, 1024, 2048), k=(512, 2048)), how="cross")
    factor = np.where((rows["algorithm"] == "small") == (rows["m"] > 100), 1.3, 1.0)
    rows["time_us"] = factor * (cost_us + 1e-7 * rows["m"] * rows["n"] * rows["k"] / 64)
    setting = {"family": "gemm", "operator": "gemm", "dtype": dtype, "math": "default", "variant": "", "batch": 1}
    return rows.assign(library="vllm", library_version="1", status="ok", **setting)


def served_on(frame: pd.DataFrame, gpu: str) -> Predictor:
    return Predictor(bundle_of(frame, InterpolatedTerms(rounds=20, max_leaves=8)), gpu=gpu)


def selections_on(gpu: str) -> list[Selection]:
    """Return the selections of products with m = 4, 16 and 4096 on an unmeasured Hopper GPU."""
    served = served_on(products({"h100-sxm": ("small", "large"), "b200": ("large", "newer")}), gpu)
    texts = ("gemm:m4n1024k2048", "gemm:m16n1024k2048", "gemm:m4096n1024k2048")
    return [served.select(served.read(text, dtype="bf16", math="default")) for text in texts]


@cases(__file__)
def test_an_unmeasured_gpu_uses_a_donor_of_its_architecture_and_near_peaks(gpu: str, fastest, source: str) -> None:
    """The best candidate changes with the size as on the donor; candidates of other architectures are excluded.

    H20 has a seventh of H100's peak and a fifth more bandwidth. Relative to the peak, m = 16 equals H100's 112.
    At m = 4 the two kernels are within 4 %, and versions of XGBoost disagree.
    """
    selections = selections_on(gpu)
    assert [selection.algorithm for selection in selections][-len(fastest) :] == fastest
    for selection in selections:
        assert {ranked.algorithm for ranked in selection.candidates} == {"small", "large"}
        assert selection.source == source
        assert any("h100-sxm" in note for note in selection.notes) == (source == "similar-gpu")


def test_a_kernel_below_its_harness_floor_does_not_win(tmp_path: Path) -> None:
    """The harness cannot measure times below its floor, so the time is unknown there."""
    frame = products({"h100-sxm": ("small", "large"), "h200-sxm": ("small", "large")})
    record = {"gpu": "h100-sxm", "library": "vllm", "algorithm": "small", "operator": "gemm", "dtype": "bf16"}
    data = replace(as_dataset(frame), metadata={"floors": [{**record, "floor_us": 4.0, "limit_us": 8.0, "rows": 9}]})
    save(train(data, model="interpolated-terms", params={"rounds": 20, "max_leaves": 8}), tmp_path / "bundle")
    stored = load(tmp_path / "bundle")
    assert stored.family_models["gemm"].floors == (
        HarnessFloor("h100-sxm", "vllm", "small", {"operator": "gemm", "dtype": "bf16"}, 8.0),
    )
    setting = {"dtype": "bf16", "math": "default"}
    both = ["small", "large"]
    for gpu, m, names in (("h100-sxm", 16, ["large"]), ("h200-sxm", 16, both), ("h100-sxm", 4096, both[::-1])):
        served = Predictor(stored, gpu=gpu)
        selection = served.select(served.read(f"gemm:m{m}n1024k2048", **setting))
        assert [ranked.algorithm for ranked in selection.candidates] == names
        reasons = [(name, "8 µs" in reason) for name, reason in selection.excluded]
        assert reasons == [("small", True)] * (len(names) == 1)
    served = Predictor(stored, gpu="h100-sxm")
    alone = served.predict(served.read("gemm:m16n1024k2048", **setting), "small")
    assert alone.source == "floor" and alone.upper_us > 8.0 * (1 - 1e-12)
    own_rows = frame[frame["gpu"] == "h100-sxm"].reset_index(drop=True)
    answers = served.predict(own_rows.drop(columns=["time_us", "status"]))
    is_small = (own_rows["algorithm"] == "small") & (own_rows["time_us"] < 7.0)
    assert is_small.any() and not answers.in_domain[is_small].any()
    assert (answers.upper_us[is_small] > 8.0 * (1 - 1e-12)).all()


def test_a_donor_also_gives_the_call_cost() -> None:
    """H800 equals H100 in everything that products use; call costs on B200 must not matter."""
    frame = pd.concat([products({"h100-sxm": ("small",)}), products({"b200": ("small",)}, cost_us=40.0)])
    served = served_on(frame, "h800")
    assert (frame["gpu"] == "h100-sxm").any()
    for row in frame[frame["gpu"] == "h100-sxm"].itertuples():
        problem = served.read(f"gemm:m{row.m}n{row.n}k{row.k}", dtype="bf16", math="default")
        assert served.predict(problem).time_us == pytest.approx(row.time_us, rel=0.005)


def test_an_unsupported_row_does_not_affect_other_rows(refused) -> None:
    """A candidate measured only on another GPU is answered; one of another type is not supported."""
    bf16 = products({"h100-sxm": ("small", "large"), "h200-sxm": ("small", "older"), "b200": ("newer",)})
    frame = pd.concat([bf16, products({"b200": ("quick",)}, dtype="fp8")])
    served = served_on(frame, "gh200")
    setting = frame.iloc[[0]].drop(columns=["gpu", "algorithm", "status", "time_us"])
    table = pd.concat([setting.assign(algorithm=name) for name in ("small", "older", "newer", "quick")])
    answers = served.predict(table.assign(m=256, gpu="gh200"))
    assert list(answers.supported) == [True, True, True, False]
    assert np.isfinite(answers.predicted_us).tolist() == [True, True, True, False]
    problem = served.read("gemm:m256n512k512", dtype="bf16", math="default")
    assert served.predict(problem, "older").time_us == pytest.approx(answers.predicted_us[1])
    assert served.predict(problem).algorithm in ("small", "large")
    with refused("did you mean small"):
        served.predict(table.assign(m=256, gpu="gh200", algorithm="smal"))


@pytest.mark.parametrize(("source", "best"), [("model", "small"), ("habit", "newer"), ("nearest", "small")])
def test_the_average_rank_answers_if_training_chose_it(source: str, best: str) -> None:
    """The table has no GPU of RTX PRO 6000's architecture. "nearest" in older bundles means the model."""
    frame = products({"a100-sxm4-80gb": ("small", "large", "newer"), "h100-sxm": ("large", "newer")})
    slow = frame["algorithm"].map({"small": 1.0, "large": 1.0, "newer": 1.2})
    bundle = bundle_of(frame.assign(time_us=frame["time_us"] * slow), InterpolatedTerms(rounds=20, max_leaves=8))
    part = bundle.family_models["gemm"]
    cost_of = {"large": 0.2, "newer": 0.1, "small": 0.3}
    labels = part.boosted_arrays.interpolation.measured_times.labels
    costs = {key_text(label): cost_of[label.candidate.rpartition("|")[2]] for label in labels}
    unseen = structs.replace(part.unmeasured_gpu, ranking_source=source, mean_log_slowdowns=costs)
    served = Predictor(
        replace(bundle, family_models={"gemm": replace(part, unmeasured_gpu=unseen)}), gpu="rtx-pro-6000-server"
    )
    selection = served.select(served.read("gemm:m16n1024k2048", dtype="bf16", math="default"))
    assert selection.source == "datasheet"
    assert any("order" in note for note in selection.notes) == (source == "habit")
    assert selection.algorithm == best
    together = served.predict(selection.problem)
    assert (together.algorithm, together.time_us) == (selection.algorithm, selection.time_us)
