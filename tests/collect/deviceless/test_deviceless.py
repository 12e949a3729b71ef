"""The ranking for a described GPU, and the log that it is written to."""

import json

import pytest

from surrogate.collect import deviceless
from surrogate.collect.deviceless import KEPT, Deviceless, collect_heuristic
from surrogate.collect.plan import PlannedProblem, build
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu

CONV = Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1)


def plan(count: int = 3):
    convs = [Conv(n=1 + i, c=16, h=28, k=32, r=3, pad_h=1) for i in range(count)]
    return build([PlannedProblem(conv, "test", ("Net",)) for conv in convs], description="test")


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_ranking_leaves_out_what_the_math_forbids(backend):
    device = Deviceless(gpu("h200"), backend=backend)
    assert [one.algorithm for one in device.ranking(CONV)] == ["engine:1", "engine:1", "engine:0"]
    tf32 = Conv(**{**CONV.to_dict(), "math": "default"})
    assert device.ranking(tf32)[0].algorithm == "engine:67"


def test_engines_have_their_workspace(backend, fake_cudnn):
    fake_cudnn.refused_plans = {2}
    assert Deviceless(gpu("h200"), backend=backend).engines(CONV) == {0: 0, 1: 1000}


def test_a_problem_that_no_engine_takes_has_an_empty_ranking(backend, fake_cudnn):
    fake_cudnn.has_heuristic = False
    assert Deviceless(gpu("h200"), backend=backend).ranking(CONV) == ()


def test_a_ranked_plan_that_is_refused_after_all_says_so(backend, fake_cudnn):
    fake_cudnn.refused_plans = {1}
    entries = Deviceless(gpu("h200"), backend=backend).entries(CONV)
    assert [entry["status"] for entry in entries] == ["not_supported", "not_supported", "ok"]
    assert entries[1]["knobs"] == [[2, 5]] and entries[2]["notes"] == ["strict_nan_prop"]


def test_long_rankings_are_cut(backend, fake_cudnn):
    fake_cudnn.ranking = [(1, {2: number}) for number in range(40)]
    assert len(Deviceless(gpu("h200"), backend=backend).entries(CONV)) == KEPT


def test_closing_destroys_the_description(backend, fake_cudnn):
    device = Deviceless(gpu("h200"), backend=backend)
    assert len(fake_cudnn.live) == 1 and json.loads(fake_cudnn.devices[0])["deviceName"] == "NVIDIA H200"
    device.close()
    assert fake_cudnn.live == {}


def test_the_log_holds_a_ranking_per_problem(backend, tmp_path):
    path, seen = tmp_path / "run.jsonl", []
    chosen = plan()
    added = collect_heuristic(
        chosen,
        "h200",
        str(path),
        lambda *call: seen.append(call),
        device=Deviceless(gpu("h200"), backend=backend),
    )
    header, *rest = records(path)
    assert added == 3 and [record["problem"] for record in rest] == [one.key for one in chosen.problems]
    assert header["device"]["gpu"] == "h200-sxm" and header["device"]["properties"]["deviceless"] is True
    assert rest[0]["candidates"] == ["engine:1", "engine:0"]
    assert rest[0]["heuristic"][0] == {
        "algorithm": "engine:1", "deterministic": True, "status": "ok", "workspace_bytes": 1000,
    }  # fmt: skip
    assert seen[-1] == (3, 3, chosen.problems[-1].key)


def test_an_interrupted_log_goes_on(backend, tmp_path):
    path, chosen = tmp_path / "run.jsonl", plan()

    def stop(done, *_):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_heuristic(chosen, "h200", str(path), stop, device=Deviceless(gpu("h200"), backend=backend))
    assert collect_heuristic(chosen, "h200", str(path), device=Deviceless(gpu("h200"), backend=backend)) == 1
    assert len(records(path)) == 4


def test_another_gpu_does_not_go_on_with_the_log(backend, tmp_path):
    path = tmp_path / "run.jsonl"
    collect_heuristic(plan(), "h200", str(path), device=Deviceless(gpu("h200"), backend=backend))
    with pytest.raises(InputError, match="recorded with GPU h200-sxm, this is v100"):
        collect_heuristic(plan(), "v100", str(path), device=Deviceless(gpu("v100"), backend=backend))


def test_without_the_library_the_remedy_is_one_line(monkeypatch):
    def missing():
        raise InputError("libcudnn was not found (no file)")

    monkeypatch.setattr(deviceless.Library, "load", missing)
    with pytest.raises(InputError, match=r"pip install 'seer-surrogate\[heuristic\]'") as caught:
        Deviceless(gpu("h200"))
    assert "\n" not in str(caught.value)


def test_an_old_library_is_refused(monkeypatch):
    class Old:
        version, version_number = "9.1.0", 90100

    monkeypatch.setattr(deviceless.Library, "load", Old)
    with pytest.raises(InputError, match=r"cuDNN 9.1.0 cannot rank"):
        Deviceless(gpu("h200"))


def test_a_gpu_that_cudnn_cannot_know_is_refused_before_the_library_is_looked_for():
    with pytest.raises(InputError, match="cannot be described"):
        Deviceless(gpu("mi100"))


def test_the_real_library_ranks(real_backend):
    device = Deviceless(gpu("h200"), backend=real_backend)
    entries = device.entries(CONV)
    assert entries and entries[0]["status"] == "ok"
    assert all("tensor_core" not in entry.get("notes", ()) for entry in entries)
    assert all(len(knob) == 2 for entry in entries for knob in entry.get("knobs", ()))


def test_a_library_that_cannot_load_its_parts_is_one_line_with_the_remedy(backend, fake_cudnn):
    functions = fake_cudnn.functions()
    functions.cudnnBackendFinalize = lambda descriptor: 1006
    broken = type(backend)(backend.library, functions)
    with pytest.raises(InputError, match=r"9.19.0 cannot describe h200-sxm \(.*STATUS_1006\); pip install"):
        Deviceless(gpu("h200"), backend=broken)
    assert fake_cudnn.live == {}
