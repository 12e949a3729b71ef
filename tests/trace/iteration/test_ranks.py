"""Collective models, and times and summaries of several ranks, invented and real."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from surrogate.features.families import operator
from surrogate.features.families.embedding import EmbeddingBag, EmbeddingBagBackward, EmbeddingBagBackwardAdagrad
from surrogate.features.families.transfer import AllReduce, AllToAll, CollectiveModel, Concat
from surrogate.network.aten_call import UnsupportedError
from surrogate.trace.calls import CallReader
from surrogate.trace.events.read import read_trace, trace_files
from surrogate.trace.iteration import overheads as host_overheads
from surrogate.trace.iteration.overheads import cross_validated_us, fit_collective_model
from surrogate.trace.iteration.predict import iteration_times
from surrogate.trace.iteration.ranks import rank_summary, rank_times
from tests.known import cases, known_answers
from tests.trace.events import built


def messages(*sizes: int) -> list[AllReduce]:
    return [AllReduce(elements=size, ranks=8) for size in sizes]


def test_collective_model_of_few_sizes_is_linear():
    """At 2·7/8 over 25 GB/s, 1 and 3 MB take 70 and 210 µs plus 10 µs; 2 MB take 150 µs."""
    model = fit_collective_model(messages(250_000, 750_000), [80.0, 220.0])
    assert (model.overhead_us, model.max_gbs) == (pytest.approx(10.0), pytest.approx(25.0))
    assert float(model.time_us(2e6, 1.75)) == pytest.approx(150.0)


def test_collective_model_of_many_sizes_is_the_published_curve():
    """A fit to every second size of a curve predicts the other sizes."""
    true = CollectiveModel(overhead_us=20.0, max_gbs=120.0, a=14.0, c=24.0, l=2.0, k=0.7, x0=18.0, b=0.02)
    sizes = (2 ** np.arange(8, 28, 0.25)).astype(int)
    problems = messages(*sizes.tolist())
    times = [float(true.time_us(message.dram_bytes, message.factor)) for message in problems]
    model = fit_collective_model(problems[::2], times[::2])
    found = [float(model.time_us(message.dram_bytes, message.factor)) for message in problems]
    middle = [15 < np.log2(message.dram_bytes) < 22 for message in problems]
    assert sum(middle) > 5
    assert np.array(found)[middle] == pytest.approx(np.array(times)[middle], rel=0.03)


NCCL_US, LOOKUPS = (known_answers(__file__)[name] for name in ("nccl_us", "lookups"))
"""NCCL 2.29's all-reduce over eight B200, fp16, 512 bytes to 512 MiB (ai-dynamo/aiconfigurator, Apache-2.0)."""


def test_collective_model_predicts_nccl_times():
    """Cross-validation errors have a median of 5 % and a maximum of 23 %, at a change of NCCL's algorithm."""
    problems = [AllReduce(elements=2 ** (8 + i), ranks=8, dtype="fp16") for i in range(len(NCCL_US))]
    errors = np.array(cross_validated_us(problems, NCCL_US), dtype=float) / NCCL_US - 1
    assert np.median(np.abs(errors)) < 0.06 and np.abs(errors).max() < 0.25


def test_cross_validation_leaves_out_the_predicted_size():
    """The line through 80 µs at 1 MB and 220 µs at 3 MB predicts 150 µs at 2 MB."""
    problems = messages(250_000, 500_000, 500_000, 750_000)
    assert cross_validated_us(problems, [80.0, 400.0, 90.0, 220.0])[1:3] == [pytest.approx(150.0)] * 2
    assert cross_validated_us(messages(8, 80), [1.0, 2.0]) == [None, None]
    assert host_overheads.fit_collective_models([AllToAll(elements=8, ranks=2)], [1.0]) == {}


def rank(number: int, kernel_us: float, elements: int = 1000) -> dict:
    """Return a step that launches one all-reduce, whose kernel starts after 40 µs."""
    events = built(known_answers(__file__)["all_reduce"])
    events[2]["args"]["Input Dims"] = [[elements]]
    events[-1] |= {"pid": 1, "dur": kernel_us}
    gpu = {"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0, "numSms": 80}
    return {"deviceProperties": [gpu], "distributedInfo": {"rank": number, "world_size": 8}, "traceEvents": events}


@pytest.fixture
def folder(tmp_path) -> Path:
    """Write two ranks: rank 1 begins 100 µs after rank 0, which waits in the collective of 40 µs."""
    for number, kernel_us in enumerate((140, 40)):
        (tmp_path / f"{number}.json").write_text(json.dumps(rank(number, kernel_us)))
    return tmp_path


def test_collective_starts_when_the_last_rank_arrives(folder):
    found = rank_times([read_trace(folder / "1.json"), read_trace(folder / "0.json")], times="measured")
    rows = list(found.ranks)
    assert [(row["rank"], row["start_us"]) for row in rows] == [(0, 0.0), (1, 100.0)]
    assert [(row["measured_waiting_us"], row["waiting_us"]) for row in rows] == [(100.0, pytest.approx(100.0)), (0, 0)]
    assert [row["device_us"] for row in rows] == pytest.approx([140.0, 40.0])
    (only,) = found.collectives
    assert (only["collective"], only["message_bytes"], only["last"]) == ("all_reduce", 4000, 1)
    assert only["measured_us"] == only["predicted_us"] == 40.0


def test_ranks_with_different_collectives_are_refused(refused, folder, read):
    without_collectives = json.loads(json.dumps(rank(1, 4)["traceEvents"]).replace("ncclKernel_AllReduce", "relu"))
    with refused("has 0 collectives, and ", " has 1"):
        rank_times([read_trace(folder / "0.json"), read({"traceEvents": without_collectives})])
    with refused("the ranks have no collectives"):
        rank_times([read({"traceEvents": without_collectives})] * 2)


def test_iteration_command_saves_collective_models(seer, folder):
    """The saved overheads contain the collective model, which predicts the collectives of another run."""
    text = json.dumps([event | {"ts": event["ts"] + 2000} for event in rank(0, 60, 11_000)["traceEvents"]])
    events = json.loads(text.replace('"correlation": 5', '"correlation": 6'))
    for path in sorted(folder.glob("*.json")):
        trace = json.loads(path.read_text())
        path.write_text(json.dumps(trace | {"traceEvents": trace["traceEvents"] + events}))
    code, out, _ = seer("iteration", folder, "--times", "surrogate", "--save-overheads", folder / "o")
    assert code == 0 and "2 ranks, surrogate times" in out and "all_reduce" in out
    # 4 kB take 40 µs and 44 kB take 60 µs: 2 µs per 4 kB plus 38 µs.
    models = host_overheads.load_overheads(folder / "o").collective_models
    assert models["all_reduce"].overhead_us == pytest.approx(38.0)
    words = ("--times", "surrogate", "--overheads", folder / "o", "--json")
    answer = seer("iteration", folder / "0.json", *words).succeeded().json
    assert [row["device_us"] for row in answer["iterations"]] == pytest.approx([40.0, 60.0])
    assert "other ranks" in answer["notes"][0] and answer["coverage"] == 1.0


@pytest.mark.parametrize("words", [["--iteration", "0"], ["--overheads", "none.json"]])
def test_iteration_command_refuses_invalid_options_for_ranks(seer, folder, words):
    assert seer("iteration", folder, *words).is_refusal()


def test_summary_of_ranks_shows_work_and_waits(seer, folder):
    """Rank 0 waits 100 of 140 µs in the collective for rank 1; a kernel of 50 µs overlaps 20 µs of it."""
    first = json.loads((folder / "0.json").read_text())
    kernel = first["traceEvents"][-1]
    args = {"device": 0, "stream": 7}
    first["traceEvents"].append(kernel | {"name": "sgemm", "ts": kernel["ts"] + 120, "dur": 50, "args": args})
    (folder / "0.json").write_text(json.dumps(first))
    answer = seer("summary", folder, "--json").succeeded().json
    first_row, second_row = answer["ranks"]
    assert answer["straggler"] == 1
    assert [first_row[name] for name in ("time_us", "compute_us", "communication_us", "idle_us")] == [170, 50, 140, 0]
    assert first_row["overlap_pct"] == pytest.approx(100 * 20 / 140) and second_row["overlap_pct"] == 0
    assert [(row["waiting_us"], row["awaited_us"]) for row in answer["ranks"]] == [(100, 0), (0, 100)]
    (only,) = answer["collectives"]
    assert (only["message_bytes"], only["shortest_us"], only["waiting_us"], only["last"]) == (4000, 40, 100, 1)
    assert "2 of 8 ranks" in answer["notes"][0] and "best" not in first_row
    code, out, err = seer("summary", folder)
    assert code == 0 and "2 of 8 ranks" in err
    assert "wait longest for rank 1: 100 µs" in out and "all_reduce" in out
    lines = [line.split()[:2] for line in out.splitlines()]
    assert ["mean", "105"] in lines and ["spread", "130"] in lines


def test_collectives_that_differ_between_ranks_name_no_straggler(folder, read):
    first = json.loads((folder / "0.json").read_text())
    other = rank(1, 40)
    other["traceEvents"][-1]["name"] = "ncclKernel_Broadcast_RING_LL_Sum_int8_t"
    found = rank_summary([read(first, "0.json"), read(other, "1.json")])
    assert found.straggler is None and not found.collectives and found.ranks[0]["waiting_us"] == 0
    assert any(note.startswith("2 collectives") for note in found.notes)


def test_traces_of_one_rank_are_a_batch_sweep(seer, folder):
    """Traces with the same rank, or with --batch, are not ranks of one run."""
    (folder / "1.json").write_text(json.dumps(rank(0, 40)))
    assert "best" in seer("summary", folder)[1]
    (folder / "1.json").write_text(json.dumps(rank(1, 40)))
    assert "best" in seer("summary", folder, "--batch", 8, "--batch", 16)[1]
    assert "best" not in seer("summary", folder)[1]


def test_archive_of_ranks_is_read_like_a_folder(seer, folder):
    """A damaged archive, or one that unpacks to more than --max-bytes, is refused."""
    with tarfile.open(folder / "ranks.tar.gz", "w:gz") as archive:
        for name in ("0.json", "1.json"):
            archive.add(folder / name, f"../{name}")
    answer = seer("summary", folder, "--csv")
    assert seer("summary", folder / "ranks.tar.gz", "--csv") == answer and answer[1].count("\n") == 3
    (folder / "broken.tar.gz").write_bytes((folder / "ranks.tar.gz").read_bytes()[:200])
    for words in ([folder / "ranks.tar.gz", "--max-bytes", 1200], [folder / "broken.tar.gz"]):
        assert seer("summary", *words).is_refusal()


def test_ranks_with_equal_file_names_are_all_read(seer, folder):
    """Each rank may write into its own folder under the same file name."""
    with tarfile.open(folder / "ranks.tar.gz", "w:gz") as archive:
        for number in (1, 0):
            archive.add(folder / f"{number}.json", f"rank{number}/trace.json")
    rows = seer("summary", folder / "ranks.tar.gz", "--json").json["ranks"]
    of_folder = seer("summary", folder, "--json").json["ranks"]
    assert [row["rank"] for row in rows] == [0, 1]
    assert [row["compute_us"] for row in rows] == [row["compute_us"] for row in of_folder]
    assert [row["trace"] for row in rows] == ["rank0/trace.json", "rank1/trace.json"]
    for number in (1, 0):
        (folder / "run" / f"rank{number}").mkdir(parents=True)
        (folder / f"{number}.json").rename(folder / "run" / f"rank{number}" / "trace.json")
    assert seer("summary", folder / "run", "--json").json["ranks"] == rows
    times = seer("iteration", folder / "run", "--json").json["ranks"]
    assert [row["trace"] for row in times] == ["rank0/trace.json", "rank1/trace.json"]
    with trace_files([folder / "ranks.tar.gz"]) as files:
        assert [file.read().source for file in files] == [f"{folder}/ranks.tar.gz/rank{i}/trace.json" for i in (0, 1)]


def test_archive_of_one_trace_is_read_like_a_file(seer, folder):
    """An archive of several traces is refused; errors name the archive and the file in it."""
    (folder / "none.json").write_text('{"traceEvents": []}')
    for name, members in (("two", ["0.json", "1.json"]), ("one", ["0.json"]), ("none", ["none.json"])):
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
            for member in members:
                archive.add(folder / member, f"run/{member}")
    assert "holds 2 traces" in seer("kernels", folder / "two.tar.gz")[2]
    assert seer("kernels", folder / "one.tar.gz", "--csv") == seer("kernels", folder / "0.json", "--csv")
    assert f"{folder / 'none.tar.gz'}/run/none.json: holds no operators" in seer("summary", folder / "none.tar.gz")[2]


def test_folder_without_traces_is_refused(seer, tmp_path):
    assert seer("iteration", tmp_path)[0] == 2


@pytest.fixture(scope="session")
def dlrm(measurements, tmp_path_factory):
    """Return the traces of eight ranks of a recommendation model on V100s, one iteration each."""
    folder = tmp_path_factory.mktemp("dlrm")
    with tarfile.open(measurements / "traces" / "dlrm_8_workers_v100.tar.gz") as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return sorted(folder.rglob("worker*.json"))


def test_problem_sizes_of_a_recommendation_model(dlrm):
    """By hand, the trace has 3 tables of 16 columns, 128 samples of 2 indices, and 64 samples a block."""
    trace = read_trace(dlrm[0])
    reader, names = CallReader(trace), [trace.name_of(trace.ranges, row) for row in range(len(trace.ranges))]

    def problems(name: str) -> list:
        return [reader.problems(row)[0] for row, row_name in enumerate(names) if row_name == name]

    sizes = {"batch": 128, "tables": 3, "rows": 640649648 // 48, "bag": 2, "dim": 16, "rows_per_block": 64}
    assert problems("fbgemm::split_embedding_codegen_lookup_adagrad_function") == [EmbeddingBag(**sizes)]
    updates = problems("torch::autograd::CppNode<SplitLookupFunction_adagrad_Op>")
    assert updates == [EmbeddingBagBackwardAdagrad(**sizes)]
    small = {"batch": 16, "tables": 2, "rows": 3, "dim": 16, "rows_per_block": 64}
    assert problems("torch::autograd::CppNode<SplitLookupFunction_Dense_Op>") == [EmbeddingBagBackward(**small)]
    assert problems("nccl:all_reduce") == messages(394241, 112, 226960)
    assert AllToAll(elements=24, ranks=8, dtype="fp64") in problems("nccl:all_to_all")  # long integers
    with pytest.raises(UnsupportedError, match="shapes of its tensors"):
        problems("aten::cat")  # the operators without a gradient
    joined = [row for row, name in enumerate(names) if name == "aten::cat" and trace.ranges.sequence[row] == 505]
    assert reader.problems(joined[0]) == (Concat(elements=16 * 367),)


def test_device_time_of_a_recommendation_model_is_covered(dlrm):
    """A roofline prediction takes at least the shortest kernel time for each launch of an operator."""
    found = iteration_times(read_trace(dlrm[0]), times="surrogate")
    assert found.coverage >= 0.95
    rows = {row.operator: row for row in found.operators}
    shortest = rows["aten::ones_like"].predicted_us  # one element
    assert rows["fbgemm::permute_2D_sparse_data"].predicted_us == pytest.approx(14 * shortest)


@cases(__file__)
def test_table_batched_lookup_gives_its_problems(read, arguments, update, kind, variant):
    """The lookup has 3 tables of 200 rows, 32 samples of 10 indices, and 4 samples a block.

    The kernels' names show shared memory and the optimizer.
    """
    ends = {"forward": f"_kernel_1{arguments}", "backward": f"_{update}"}
    events = [record | {"name": record["name"].format(**ends)} for record in built(LOOKUPS)]
    reader = CallReader(read({"traceEvents": events}))
    sizes = {"batch": 32, "tables": 3, "rows": 200, "bag": 10, "dim": 64, "rows_per_block": 4, "variant": variant}
    assert reader.problems(0) == (EmbeddingBag(**sizes),)
    assert reader.problems(1) == (operator(kind, **sizes),)
    with pytest.raises(UnsupportedError, match="shapes"):
        reader.problems(2)  # the trace has no second lookup


@pytest.mark.slow
def test_times_of_eight_ranks_are_within_4_pct(dlrm):
    """The walk predicts the waits, and a model the collectives; rank 4 ends last, as measured."""
    found = rank_times([read_trace(path) for path in dlrm], times="surrogate")
    rows = list(found.ranks)
    assert all(abs(row["error_pct"]) <= 4 and row["coverage"] >= 0.95 for row in rows)
    assert max(rows, key=lambda row: row["start_us"] + row["measured_us"])["slowest"]
    assert [row["last"] for row in found.collectives][:5] == [7] * 5


def test_rank_summary_equals_hta(dlrm):
    found = rank_summary([read_trace(path) for path in dlrm])
    hta = known_answers(__file__)
    names = ("idle_us", "compute_us", "non_compute_us", "time_us")
    assert [[row[name] for name in names] for row in found.ranks] == [figures[:4] for figures in hta["ranks"]]
    for row in found.ranks:
        assert row["overlap_pct"] == pytest.approx(hta["ranks"][row["rank"]][4], abs=0.005)
        assert row["host_wait_us"] + row["kernel_wait_us"] + row["other_wait_us"] == row["idle_us"]
    streams = {(row["rank"], row["stream"]): (row["host_wait_us"], row["kernel_wait_us"]) for row in found.streams}
    assert all(streams[rank, stream] == (host, kernel) for rank, stream, host, kernel in hta["streams"])
    # 64 kernels of rank 1 were launched before its trace begins. HTA joins them to the first event of the file,
    # which moves 93 µs to the host; the sum is the same.
    assert streams[1, 7] == (17449 - 93, 115 + 93)
    # HTA names two candidates, ranks 2 and 7; the times in collectives decide.
    assert found.straggler == 7 and [row["last"] for row in found.collectives] == [7] * 5 + [5, 5, 4]
