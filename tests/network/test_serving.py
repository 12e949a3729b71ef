"""Servers of language models: times and intervals, memory, and the search for configurations under targets."""

import json
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from experiments.experiment import HOME
from surrogate.bundled import NETWORKS
from surrogate.features.errors import InputError, naming_options
from surrogate.features.families.attention import Attention, Mla
from surrogate.features.families.gemm import Gemm
from surrogate.features.families.moe import Moe
from surrogate.features.families.transfer import HANDSHAKE_US, AllGather, AllReduce, AllToAll, Memcpy
from surrogate.features.gpu import gpu
from surrogate.network import Choices, Serving, serve
from surrogate.network.language import Deployment
from surrogate.network.language_config import read_decoder
from surrogate.network.language_step import GAP_US, Requests, Step
from surrogate.network.memory import memory, usable_bytes
from surrogate.network.network import TEXTS, Network
from surrogate.network.predict import load_predictors, step_half_width
from surrogate.network.serving import Load, ServerKernels, ServerModel, ServerSteps, Setup, server_models, server_steps
from surrogate.network.serving_result import MAX_ROWS, Targets, order_note, pareto, pareto_figure, serving_page
from surrogate.report.tables import to_json
from tests.known import cases
from tests.test_docs import blocks

LLAMA, SMALL, DEEPSEEK = NETWORKS["llama-3.3-70b"], NETWORKS["llama-3.1-8b"], NETWORKS["deepseek-v3"]
PAGE = Path(__file__).resolve().parents[2] / "surrogate" / "network" / "SERVING.md"
MEASURED: dict[str, Any] = {"memory_bytes": 1.0, "fits": True, "half_width": 0.0, "floored_problems": ()}
MEASURED |= {"parts": {"products": 0.7, "prompts": 0.3}}
SHORT: dict[str, Any] = {"gpu": "h100-sxm", "input": 64, "output": 8}
STEPS = ServerSteps(Load(1000, 101), users=11, running=11, stages=1, decode_ms=10.0, prompt_ms=40.0, **MEASURED)
SERVER_MODEL = ServerModel(start_steps=0.5, share=0.1, delay_steps=2.0, ttft=(log(2), log(4)), tpot=(0.0, log(2)))


def test_token_time_is_a_step_plus_a_share_of_other_prompts() -> None:
    """Ten other users start once in 100 tokens, which is 0.1 prompts per token."""
    assert STEPS.tpot_ms == pytest.approx(10 + 0.1 * 40)
    assert STEPS.ttft_ms(0.5, 0.1) == pytest.approx(0.5 * 14 + 40 * (1 + 0.1 * 10))
    assert replace(STEPS, users=1, running=1).tpot_ms == 10.0


def test_requests_beyond_the_cache_wait_for_a_free_slot() -> None:
    waiting = replace(STEPS, users=22)
    assert waiting.tpot_ms == STEPS.tpot_ms and waiting.bound == "memory"
    assert waiting.ttft_ms(0.5, 0.1) - STEPS.ttft_ms(0.5, 0.1) == pytest.approx(40 + 100 * 14)


def test_short_answers_are_limited_by_prompt_throughput() -> None:
    """A step takes at most 8,192 prompt tokens, so that a user's cycle lasts at least as long as all prompts."""
    for output, users in ((1, 11), (2, 200), (1, 200)):
        steps = replace(STEPS, load=Load(4096, output), users=users, running=min(users, 50), min_ttft_ms=20.0)
        ttft, tpot, request = steps.intervals(SERVER_MODEL)
        token_ms = tpot.time if output > 1 else 0.0
        assert ttft.time + (output - 1) * token_ms >= users * steps.prompt_ms
        assert steps.running / request.low <= 1 / steps.min_ttft_ms and steps.bound == "products"
        assert output == 1 or token_ms == pytest.approx(10 + 2 * 40)  # prompts of 49 other users
    assert replace(STEPS, load=Load(8192, 33), running=201, users=201).tpot_ms == pytest.approx(10 + 200 / 32 * 40)


@pytest.mark.parametrize("output", [1, 2, 8, 33, 400])
def test_more_users_wait_longer_and_do_not_lower_the_throughput(output: int) -> None:
    loads = [replace(STEPS, load=Load(1000, output), users=users, running=users) for users in (1, 2, 8, 16, 64, 256)]
    times = [steps.ttft_ms(4.7, 0.05) for steps in loads]
    cycles = [ttft + (output - 1) * steps.step_ms for ttft, steps in zip(times, loads, strict=True)]
    rates = [steps.users / cycle for steps, cycle in zip(loads, cycles, strict=True)]
    assert times == sorted(times) and rates == sorted(rates) and times[1] < 1.5 * times[0]


def test_intervals_widen_if_kernels_were_not_measured() -> None:
    ttft, tpot, _ = STEPS.intervals(SERVER_MODEL)
    assert (ttft.low, ttft.high) == pytest.approx((ttft.time / 2, (ttft.time + 2 * 14) * 4))  # the delay is two steps
    assert (tpot.low, tpot.high) == pytest.approx((14, 28))
    wider = replace(STEPS, half_width=0.5).intervals(SERVER_MODEL)[1]
    assert wider.low < 14 and wider.high > 28
    bounded = replace(STEPS, min_ttft_ms=60.0, min_tpot_ms=99.0).intervals(SERVER_MODEL)
    assert [interval.low for interval in bounded[:2]] == pytest.approx([60, bounded[1].time])  # times are 87 and 14 ms


def test_first_tokens_do_not_choose_the_framework() -> None:
    models = server_models()
    assert set(models) == {"vllm", "sglang", "trtllm"}
    assert all(model.start_steps > 0 and 0 < model.share < 1 for model in models.values())
    assert len({STEPS.intervals(model)[0][:2] for model in models.values()}) == 1  # the same time and lower end
    assert models["vllm"].delay_steps == 0 < models["trtllm"].delay_steps < models["sglang"].delay_steps


@pytest.fixture(scope="module")
def servers() -> Serving:
    """Return the configurations for Llama 3.3 70B on up to 8 H100 with a target of 30 ms per token."""
    choices = Choices(libraries="vllm", concurrency=(16, 64), tensor_parallel=(1, 2, 4), dtypes=("bf16", "fp8"))
    return serve(LLAMA, gpu="h100-sxm", input=1024, output=512, tpot_ms=30.0, price=2.0, choices=choices)


def test_the_search_finds_the_cheapest_configuration_that_meets_the_targets(servers: Serving) -> None:
    best = servers.best
    assert best is not None and best.tpot_ms <= 30 and best.fits
    meeting = [row for row in servers.rows if row.fits and row.tpot_ms <= 30]
    assert best.usd_per_million_tokens == min(row.usd_per_million_tokens or 0 for row in meeting)
    assert [row.meets for row in servers.rows] == sorted((row.meets for row in servers.rows), reverse=True)
    assert best.usd_per_million_tokens == pytest.approx(2.0 / 3600 / best.tokens_per_s_per_gpu * 1e6)


def test_fp8_weights_fit_on_one_gpu_and_bf16_weights_do_not(servers: Serving) -> None:
    rows = {(row.dtype, row.gpus): row for row in servers.rows if row.replicas == 1 and row.concurrency == 16}
    assert not rows["bf16", 1].fits and rows["fp8", 1].fits and rows["bf16", 4].fits
    row = rows["fp8", 1]
    assert row.bound == "memory" and rows["fp8", 2].bound != "memory"  # one GPU has room for the weights and few users
    assert row.running < row.concurrency == rows["fp8", 2].running
    assert row.tokens_per_s_per_gpu_high <= row.running * 512 / 511 * 1e3 / row.tpot_low_ms
    assert not any(each.meets for each in servers.rows if each.bound == "memory")
    assert f"holds {row.running} of 16 users" in str(servers.table(len(servers.rows)))
    assert 0 < rows["fp8", 4].memory_gib < 0.7 * rows["bf16", 4].memory_gib


def test_more_users_take_longer_and_more_replicas_take_less(servers: Serving) -> None:
    rows = [row for row in servers.rows if row.dtype == "fp8" and row.fits]
    times = {(row.gpus, row.replicas, row.concurrency): row.tpot_ms for row in rows}
    assert times[2, 1, 64] > times[2, 1, 16] and times[4, 2, 64] < times[2, 1, 64]
    assert times[4, 1, 64] < times[2, 1, 64]


def test_a_misfit_within_the_whole_memory_names_the_share_of_the_server() -> None:
    load: dict[str, Any] = {
        "gpu": "b200",
        "gpus": 4,
        "input": 1024,
        "output": 64,
        "concurrency": 8,
        "libraries": "sglang",
    }
    assert "(--utilization)" in serve(DEEPSEEK, tensor_parallel=4, **load).verdict


def test_a_result_has_json_text_page_and_table(servers: Serving) -> None:
    message = json.loads(to_json(servers.to_dict()))
    assert message["best"] == message["rows"][0] and len(servers.to_frame()) == len(message["rows"])
    assert all(part in repr(servers) for part in ("◀ best", "meets the targets", "further configurations"))
    assert repr(servers.best).splitlines()[0].split()[:2] == ["GPUs", "with"] and "1e+" not in repr(servers)
    page = serving_page(servers)
    assert page.count("<svg") == 1 and "tokens/s and user" in page and "<small>[" in page
    narrow = [replace(servers.rows[0], tokens_per_s_per_user=user, tokens_per_s_per_gpu=40) for user in (20, 30)]
    assert "mathdefault" not in str(pareto_figure(narrow))
    table = servers.table(len(servers.rows))
    assert len(table.records) == sum(row.fits for row in servers.rows) < len(servers.rows)
    text = table.text(200)
    assert "TP1 does not fit h100-sxm in bf16, cache bf16: it needs 13" in text
    assert "; it fits as TP2" in text and "TP: GPUs that share every layer" in text and "EP:" not in text
    assert len(servers.table(MAX_ROWS).records) == MAX_ROWS


def test_fp8_is_faster_than_bf16_if_servers_fuse_the_quantisation() -> None:
    options: dict[str, Any] = {"libraries": "vllm", "concurrency": 1, "tensor_parallel": 8, "dtypes": ("bf16", "fp8")}
    rows = serve(LLAMA, gpu="h100-sxm", input=1024, output=128, **options).rows
    times = {row.dtype: row.tpot_ms for row in rows}
    assert times["fp8"] < times["bf16"]


def test_rivals_have_intervals_that_overlap_the_best(servers: Serving) -> None:
    best = servers.best
    assert best and best.tokens_per_s_per_gpu_low < best.tokens_per_s_per_gpu < best.tokens_per_s_per_gpu_high
    assert 0 < len(servers.rivals) < len(servers.rows) and all(row.meets for row in servers.rivals)
    assert f"{len(servers.rivals)} others may be as good" in repr(servers)
    rows = [replace(row, tokens_per_s_per_gpu_high=row.tokens_per_s_per_gpu) for row in servers.rows]
    assert not replace(servers, rows=tuple(rows)).rivals
    one_rival = replace(servers, rows=(rows[0], servers.rows[1], *rows[2:]))
    assert "1 other may be as good" in repr(one_rival) and "others" not in repr(one_rival)


def test_every_number_of_replicas_is_tried_with_equal_users() -> None:
    choices = Choices(libraries="vllm", concurrency=120, gpus=6, tensor_parallel=1)
    plans = list(choices.plans(read_decoder(SMALL), gpu("h100-sxm")))
    assert [plan.replicas for plan in plans] == [1, 2, 3, 4, 5, 6]
    assert [plan.setup.users for plan in plans] == [120, 60, 40, 30, 24, 20]
    few = Choices(concurrency=3, gpus=8, tensor_parallel=1).plans(read_decoder(SMALL), gpu("h100-sxm"))
    assert [plan.replicas for plan in few] == [1, 2, 3]


def test_gpus_of_two_nodes_are_divided_by_every_kind_of_parallelism() -> None:
    deployments = [plan.setup.deployment for plan in Choices(gpus=16).plans(read_decoder(DEEPSEEK), gpu("h100-sxm"))]
    ways = {(way.tensor_parallel, way.data_parallel, way.pipeline_parallel) for way in deployments}
    assert {(16, 1, 1), (1, 16, 1), (8, 1, 2), (1, 8, 2)} <= ways and (4, 1, 2) not in ways


def test_if_nothing_fits_the_verdict_suggests_more_gpus() -> None:
    found = serve(DEEPSEEK, gpu="h100-sxm", input=64, output=8, tpot_ms=9, choices=Choices(gpus=2, libraries="vllm"))
    assert not found.fits and found.best is None
    assert "nothing fits" in found.verdict and "try --gpus 16" in found.verdict
    assert "dtypes int4_wo, or another gpu" in repr(found) and len(found.table().records) == 1
    assert {found.to_dict()["rows"][0][name] for name in ("ttft_ms", "tpot_ms", "tokens_per_s_per_gpu")} == {None}


def test_if_no_configuration_meets_the_targets_the_closest_come_first(servers: Serving) -> None:
    choices = Choices(libraries="vllm", concurrency=16, dtypes="fp8")
    found = serve(LLAMA, gpu="h100-sxm", input=1024, output=512, ttft_ms=1000, tpot_ms=1.0, choices=choices)
    fitting = [row.tpot_ms for row in found.rows if row.fits]
    assert found.best is None and fitting == sorted(fitting) and "TPOT" in repr(found.rows[0])
    assert "meets both targets with at most 8 GPUs" in found.verdict and "its target" in repr(found)
    assert f"of 1000 ms and TPOT {found.rows[0].tpot_ms:.1f}" in found.verdict and "in ms" not in found.verdict
    assert "targets are in ms" in replace(found, targets=Targets(tpot_ms=0.03)).verdict
    assert "TTFT 1." not in repr(found)  # every row meets the TTFT
    unsure = replace(servers, targets=Targets(tpot_ms=servers.rows[0].tpot_ms))
    assert "◀ best, may miss the targets" in repr(unsure)
    assert "4 h100-sxm as TP4 by vllm in fp8 with the cache in bf16 for 16 users meets them" in repr(unsure)
    assert "no configuration meets them" in replace(unsure, rows=unsure.rows[:1]).verdict
    assert "may miss" not in repr(replace(servers, targets=Targets(tpot_ms=1e3)))


def test_the_largest_number_of_users_is_searched_between_powers_of_two() -> None:
    arguments: dict[str, Any] = {"gpu": "h100-sxm", "input": 512, "output": 64, "tpot_ms": 12, "libraries": "vllm"}
    found = serve(SMALL, **arguments, tensor_parallel=(1, 16))
    (users,) = {row.concurrency for row in found.rows} - {2**power for power in range(9)}
    assert users == max(row.concurrency for row in found.rows if row.meets)
    assert all(message in repr(found) for message in ("powers of two up to 256", "tensor_parallel 16 is ignored"))
    assert not serve(SMALL, **arguments, tensor_parallel=1, gpus=1, concurrency=users + 1 + users // 16).best


def test_without_targets_no_row_is_best_and_the_front_comes_first() -> None:
    choices = Choices(libraries="vllm", tensor_parallel=(1, 2), concurrency=(1, 8, 4096))
    found = serve(SMALL, gpu="h100-sxm", input=2048, output=256, choices=choices)
    assert found.best is None and found.to_dict()["best"] is None and "without --ttft or --tpot" in found.verdict
    assert found.rows[0].bound != "memory" and any(row.bound == "memory" for row in found.rows)
    speeds = [row.tokens_per_s_per_user for row in found.rows[:3]]
    assert speeds == sorted(speeds)


def test_an_answer_of_one_token_has_no_tpot() -> None:
    found = serve(SMALL, gpu="h100-sxm", input=512, output=1, ttft_ms=900, choices=Choices(concurrency=4))
    assert found.best and found.to_dict()["best"]["tpot_ms"] is None and found.best.tokens_per_s_per_gpu > 0
    assert "nan" not in serving_page(found)


def test_fp8_weights_are_unpacked_on_a_gpu_without_fp8_units() -> None:
    on_a100: dict[str, Any] = {**SHORT, "gpu": "a100-sxm4-80gb"}
    found = serve(LLAMA, **on_a100, concurrency=4, tensor_parallel=4, dtypes="fp8", gpus=4)
    assert {(row.library, row.dtype) for row in found.rows} == {("vllm", "fp8"), ("sglang", "fp8")}
    (unpacked,) = [note for note in found.notes if "unpack fp8 weights" in note]
    (refused,) = [note for note in found.notes if "no fp8 units; give" in note]
    assert "trtllm" in refused and "int8 weights" in unpacked
    own = serve(DEEPSEEK, **on_a100, gpus=16, tensor_parallel=16)
    assert {row.dtype for row in own.rows} == {"fp8_block"}


def test_a_folder_and_parsed_content_are_read_like_the_file(tmp_path: Path) -> None:
    tmp_path.joinpath("config.json").write_bytes(SMALL.read_bytes())
    contents = json.loads(SMALL.read_text(encoding="utf-8"))
    options: dict[str, Any] = {**SHORT, "libraries": "vllm", "concurrency": 1, "tensor_parallel": 1}
    found = [serve(config, **options) for config in (SMALL, tmp_path, contents)]
    assert len({each.rows[0].tpot_ms for each in found}) == 1 and f"vllm serve {tmp_path} " in found[1].launch
    assert found[0].launch.startswith("vllm serve MODEL --") and "# give the model's folder" in found[0].launch


def test_parts_of_quantised_rows_are_multiples_of_a_group() -> None:
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    contents = {**json.loads(SMALL.read_text(encoding="utf-8")), "quantization_config": awq, "intermediate_size": 5760}
    found = serve(contents, **SHORT, libraries="vllm", concurrency=1, tensor_parallel=(1, 2))
    assert {row.tensor_parallel for row in found.rows} == {1} and "int4_wo groups of 128" in repr(found)


def test_lower_bounds_include_the_time_to_read_the_weights() -> None:
    setup = Setup(Deployment(tensor_parallel=4), 1)
    steps = server_steps(read_decoder(LLAMA), Load(1000, 100), ServerKernels(gpu("h100-sxm")), "vllm", [setup])[setup]
    assert isinstance(steps, ServerSteps)
    read_ms = (80 * (8192 * (8192 + 2048) + 8192 * 8192 + 3 * 8192 * 28672) + 8192 * 128256) * 2 / 4 / 3.35e9
    computed_ms = 2 * 1000 * 80 * (8192 * (8192 + 2048) + 8192 * 8192 + 3 * 8192 * 28672) / 4 / 989e9
    assert read_ms < steps.min_tpot_ms < 1.05 * read_ms
    assert computed_ms < steps.min_ttft_ms < 1.1 * computed_ms
    alone = load_predictors("l4", library="vllm").time(_step(SMALL, (1, 1, 1000)).network)
    assert alone.lower_us / 1e3 > 2 * 7.5e9 / 300e6  # 7.5 billion weights, without the embedding, at 300 GB/s


@cases(__file__)
def test_the_checkpoint_dtype_is_used_unless_another_is_requested(dtypes: Any, run: str, message: str) -> None:
    found = serve(LLAMA, **SHORT, libraries="vllm", concurrency=8, tensor_parallel=4, dtypes=dtypes)
    assert {row.dtype for row in found.rows} == {run} and message in " ".join(found.notes)


def test_a_cached_prefix_shortens_prompts_and_keeps_decoding() -> None:
    options: dict[str, Any] = {**SHORT, "input": 4096, "libraries": "vllm", "concurrency": 8, "tensor_parallel": 8}
    rows = [serve(LLAMA, **options, cached_share=share).rows[0] for share in (0, 0.25, 0.5, 0.75, 0.9)]
    assert rows[0] == serve(LLAMA, **options).rows[0]
    assert all(pair[1].ttft_ms < pair[0].ttft_ms and pair[1].tpot_ms < pair[0].tpot_ms for pair in pairwise(rows))
    flops, attention = [], []
    for load in (Load(4096, 8), Load(4096, 8, 0.75)):
        step = _step(LLAMA, (1, load.new, load.input))
        kernels = [kernel.problem for _, kernel in step.kernels() if kernel.name != "lm_head"]
        flops.append(sum(problem.flops for problem in kernels if isinstance(problem, Gemm)))
        attention += [problem for problem in kernels if isinstance(problem, Attention)][:1]
    assert flops[1] == flops[0] / 4 and attention[1].flops / attention[0].flops == pytest.approx(1 - 0.75**2, rel=1e-3)
    answers = ServerKernels(gpu("h100-sxm")).answers("vllm", attention)[0]
    assert answers[attention[1]].time_us <= answers[attention[0]].time_us
    latent = [kernel.problem for _, kernel in _step(DEEPSEEK, (1, 1024, 4096)).kernels() if kernel.name == "kv_b_proj"]
    assert {problem.m for problem in latent if isinstance(problem, Gemm)} == {4096}


@cases(__file__)
def test_the_command_starts_the_first_configuration(config: Any, options: dict[str, Any], launch: str) -> None:
    config = json.loads(SMALL.read_bytes()) | config if isinstance(config, dict) else config
    assert serve(config, **{**SHORT, **options}).launch == launch


def test_values_may_be_texts_with_commas_and_whole_floats() -> None:
    """Without ``kv_dtypes``, the cache has an unquantised type of the products."""
    with pytest.raises(InputError, match="gpus is in choices and is also given by itself"):
        serve(SMALL, **SHORT, choices=Choices(gpus=2), gpus=4)
    found = serve(SMALL, **SHORT, libraries="vLLM", dtypes="fp16, FP8", concurrency=1000.0, gpus=2.0, tensor_parallel=1)
    assert {(row.dtype, row.kv_dtype) for row in found.rows} == {("fp16", "fp16"), ("fp8", "bf16")}
    assert {type(row.concurrency) for row in found.rows} == {int}


def test_a_smaller_share_of_the_memory_has_fewer_running_requests() -> None:
    options: dict[str, Any] = {**SHORT, "libraries": "vllm", "tensor_parallel": 1, "concurrency": 20_000, "gpus": 1}
    full, half = (serve(SMALL, **options, utilization=share).rows[0] for share in (0.9, 0.45))
    assert full.memory_gib - half.memory_gib == pytest.approx(0.45 * usable_bytes(gpu("h100-sxm")) / 2**30, rel=0.01)


def test_the_cache_holds_one_request_of_full_length_and_half_answers_of_the_others() -> None:
    """A position takes 80 layers · 8 heads · 128 · 2 · 2 bytes. `seer network` counts the same for one request."""
    options: dict[str, Any] = {"gpu": "h100-sxm", "input": 100, "libraries": "vllm", "tensor_parallel": 2, "gpus": 2}
    long = serve(LLAMA, **options, output=20_000, concurrency=1)
    assert not long.fits and "it needs 72.4 of 71.3 GiB" in long.verdict
    one, two = (serve(LLAMA, **options, output=8_000, concurrency=users).rows[0].memory_gib for users in (1, 2))
    position = 80 * 8 * 128 * 2 * 2 / 2 / 2**30
    assert two - one == pytest.approx(position * (100 + 4_000), rel=1e-6)
    step = Step(read_decoder(LLAMA), [Requests(1, 1, 100 + 8_000 + 128)], Deployment(tensor_parallel=2), 1)
    assert one == pytest.approx(sum(memory(step.network, 0, gpu("h100-sxm")).values()) / 2**30, rel=1e-3)
    waiting = serve(LLAMA, **options, output=8_000, concurrency=64)
    assert f"holds {waiting.rows[0].running} of 64 users" in repr(waiting)


@pytest.mark.parametrize("name", ["rtx-4090", "rtx-3090", "l4", "a10"])
def test_small_sums_over_pcie_take_longer_among_more_gpus(name: str) -> None:
    """NCCL's sums of 6 kB take 7, 12 and 21 µs among 2, 4 and 8 L40S; frameworks have own kernels for two."""
    problems = [AllReduce(elements=2880, ranks=ranks, dtype="bf16") for ranks in (2, 4, 8)]
    for library in ("vllm", "sglang", "trtllm"):
        answers = ServerKernels(gpu(name)).answers(library, problems)[0]
        times = [answers[problem].time_us for problem in problems]
        assert times == sorted(times) and times[0] > HANDSHAKE_US and times[2] > 20
        assert all((step_half_width(each, answers[each], gpu(name)) or 0.0) > log(2) for each in problems)
    found = serve("gpt-oss-120b", **{**SHORT, "gpu": name}, concurrency=1, tensor_parallel=8, libraries="vllm")
    assert "from other GPUs with peer access" in repr(found) and "boards without it (GeForce)" in repr(found)


def test_notes_on_gaps_have_the_ratios_of_measured_servers() -> None:
    table = pd.read_csv(HOME / "tables" / "serving.csv").query("library == 'all' and users == '3 to 4'").iloc[0]
    note = TEXTS["notes"]["no_gaps"]
    assert f"{table['tpot_gaps_ratio'] - 1:.0%}".replace("%", " % above") in note
    assert f"{1 - table['tpot_ratio']:.0%}".replace("%", " % below") in note and f"{GAP_US:g} µs" in note
    time = load_predictors("h100-sxm", library="vllm").time(_network(tensor_parallel=2))
    (stated,) = [text for text in time.notes if "SGLang's benchmark of one batch" in text]
    assert f"{GAP_US * len(time.layers) / 1e3:.2f} ms" in stated


def test_gpus_without_a_price_are_listed_last() -> None:
    options: dict[str, Any] = {"compare_gpus": ["h200-sxm"], "price": {"h100": 3}, **SHORT}
    found = serve(LLAMA, **options, libraries="vllm", concurrency=8, tensor_parallel=4, gpus=4)
    assert [row.gpu for row in found.rows if row.fits] == ["h100-sxm", "h200-sxm"]
    swapped = replace(found, rows=(replace(found.rows[0]), *found.rows), targets=Targets(tpot_ms=1e3))
    assert [record["GPUs"] for record in swapped.table().records] == ["4 h100-sxm", "4 h200-sxm", "4 h100-sxm"]
    assert "h200-sxm has no price" in " ".join(found.notes)


def test_an_unmeasured_gpu_has_wider_intervals_and_a_note() -> None:
    choices = Choices(libraries=("vllm",), concurrency=(16,), tensor_parallel=(4,), dtypes=("bf16",))
    measured = serve(LLAMA, gpu="h200-sxm", input=512, output=128, choices=choices).rows[0]
    unmeasured = serve(LLAMA, gpu="mi300x", input=512, output=128, choices=choices)
    row = unmeasured.rows[0]
    assert row.tpot_high_ms / row.tpot_ms > measured.tpot_high_ms / measured.tpot_ms
    assert any("unmeasured kernels" in note for note in unmeasured.notes)
    experts = serve("gpt-oss-120b", gpu="mi300x", input=512, output=128, gpus=1, libraries="vllm", concurrency=16)
    assert experts.rows[0].tpot_high_ms > 2 * experts.rows[0].tpot_ms  # no 4-bit experts were measured on CDNA 3


def test_an_order_of_gpus_is_decided_if_the_interval_of_the_ratio_excludes_1(servers: Serving) -> None:
    """The widths of both rates add as squares: e^√(0.3² + 0.3²) is 1.53, and e^√(0.3² + 1²) is 2.84."""
    rows = [
        replace(servers.rows[0], gpu=name, fits=True, meets=True, usd_per_million_tokens=None)
        for name in ("a", "a", "b", "c")
    ]
    for row, rate, width in zip(rows, (100, 1, 50, 50), (0.3, 0.3, 0.3, 1.0), strict=True):
        for end, value in (("", rate), ("_low", rate / exp(width)), ("_high", rate * exp(width))):
            object.__setattr__(row, f"tokens_per_s_per_gpu{end}", value)
    ratios = "a's: b 0.5 [0.327, 0.765], c 0.5 [0.176, 1.43]; it is not decided whether a is better than c"
    assert ratios in order_note(rows, Targets(tpot_ms=1)) and order_note(rows[:2], Targets()) == ""


def test_published_times_on_eight_mi300x_are_in_narrow_intervals() -> None:
    """Static batches of vLLM take 27.6, 54 and 139 ms per token of Llama 3.1 405B in fp8, prompts of 128 included."""
    sizes = {"hidden_size": 16384, "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8}
    config = {
        "model_type": "llama",
        "intermediate_size": 53248,
        "vocab_size": 128256,
        "torch_dtype": "bfloat16",
    } | sizes
    split = Setup(Deployment(tensor_parallel=8, dtype="fp8"), 1)
    setups = {split._replace(users=users): ms for users, ms in ((1, 27.6), (64, 54.0), (256, 139.0))}
    kernels = ServerKernels(gpu("mi300x"))
    for setup, steps in server_steps(read_decoder(config), Load(128, 128), kernels, "vllm", setups).items():
        assert isinstance(steps, ServerSteps)
        tpot = steps.intervals(server_models()["vllm"])[1]
        assert tpot.low < steps.decode_ms + setup.users * steps.prompt_ms / 128 < tpot.high
        assert tpot.low < setups[setup] < tpot.high < 2 * tpot.time and steps.unmeasured_share > 0.9


def test_notes_name_pcie_communication_and_an_fp8_cache() -> None:
    found = serve(SMALL, gpu="l40s", input=512, output=64, concurrency=4, tensor_parallel=8, kv_dtypes="fp8")
    assert {row.kv_dtype for row in found.rows} == {"fp8"}
    assert all(row.bound == "products" for row in found.rows)  # eight L40S sum over PCIe at 31.5 GB/s
    assert all(row.tpot_high_ms / row.tpot_ms > 1.5 for row in found.rows)  # the sums may take twice the time
    assert "measurements of one machine" in repr(found) and "fp8: the cache is quantised from" in repr(found)
    assert "cache" in repr(found.rows[0])


@cases(__file__)
def test_invalid_arguments_of_serve_are_refused_in_one_line(refused, changed, message: str) -> None:
    for named in (naming_options(), nullcontext()):
        with refused(message), named:
            serve(**{"config": LLAMA, **SHORT, **changed})


def test_one_refused_gpu_does_not_stop_the_others() -> None:
    options: dict[str, Any] = SHORT | {"gpu": "t4", "compare_gpus": ("h100-sxm",)}
    found = serve(LLAMA, **options, dtypes=("fp8",), libraries=("vllm",), concurrency=(4,), tensor_parallel=(2,))
    assert {row.gpu for row in found.rows} == {"h100-sxm"}
    assert any("t4 has no fp8 units" in note for note in found.notes)


def _step(path: Path, *groups: tuple[int, int, int], **deployment: Any) -> Step:
    requests = [Requests(*group) for group in groups]
    return Step(read_decoder(path), requests, Deployment(**deployment), sum(size * new for size, new, _ in groups))


def _network(**deployment: Any) -> Network:
    """Return the network of Llama 3.3 70B that decodes one token after 99."""
    return Step(read_decoder(LLAMA), [Requests(1, 1, 100)], Deployment(**deployment), 1).network


def test_expert_parallelism_divides_experts_and_gathers_all_tokens() -> None:
    one_gpu, spread = _step(DEEPSEEK, (8, 1, 100)), _step(DEEPSEEK, (8, 1, 100), data_parallel=8, expert_parallel=8)
    moe = next(work for work in spread.kernel_counts() if isinstance(work, Moe))
    assert (moe.tokens, moe.expert_parallel, moe.tensor_parallel) == (64, 8, 1)
    assert spread.weights_bytes() < 0.2 * one_gpu.weights_bytes() and spread.kv_bytes == one_gpu.kv_bytes
    assert any(isinstance(work, AllGather) for work in spread.kernel_counts())
    assert not any(type(work) is AllReduce for work in spread.kernel_counts())


def test_prompts_and_decoded_tokens_share_products_and_not_attention() -> None:
    mixed = _step(LLAMA, (1, 512, 512), (16, 1, 1000)).kernel_counts()
    phases = {("context", 1), ("generation", 16)}
    assert {(work.phase, work.batch) for work in mixed if isinstance(work, Attention)} == phases
    assert {work.m for work in mixed if isinstance(work, Gemm)} == {528, 17}
    latent = _step(DEEPSEEK, (1, 512, 512), (16, 1, 1000)).kernel_counts()
    assert {(work.phase, work.batch) for work in latent if isinstance(work, Mla)} == phases


def test_pipeline_stages_divide_weights_and_send_activations() -> None:
    one_stage, staged = (_network(pipeline_parallel=stages) for stages in (1, 4))
    embedding = 2 * 128256 * 8192  # as large as the head; a stage has one of them
    layers = [(net.weights_bytes or 0) - count * embedding for net, count in ((one_stage, 2), (staged, 1))]
    sizes = [(net.state_bytes, net.parameters or 0) for net in (one_stage, staged)]
    assert (layers[1], *sizes[1]) == pytest.approx([size / 4 for size in (layers[0], *sizes[0])], rel=1e-6)
    assert (one_stage.stages, staged.stages) == (1, 4)
    assert sum(type(layer.problem) is AllToAll for layer in staged.layers) == 3


def test_an_fp8_cache_takes_half_the_memory() -> None:
    bf16, fp8 = (_network(kv_dtype=name) for name in (None, "fp8"))
    assert fp8.state_bytes == bf16.state_bytes / 2


def test_all_reduces_beyond_a_node_use_the_network() -> None:
    two_nodes = _network(tensor_parallel=16)
    assert any(type(layer.problem) is Memcpy for layer in two_nodes.layers) and "NVLink" in two_nodes.notes[0]
    assert not _network(tensor_parallel=16, node=72).notes


def test_kernels_missing_from_a_framework_table_use_other_frameworks() -> None:
    """The latent attention of vLLM was never measured, and its small fp8_block products only at the launch floor."""
    latent = Mla(batch=8, heads=16, query_length=1, context_length=4096)
    product = Gemm(m=8, n=3072, k=1536, dtype="fp8_block", math="default")
    answers, floors = ServerKernels(gpu("b200")).answers("vllm", [latent, product])
    assert {answers[latent].source, answers[product].source} == {"model"} and floors == {product}
    assert answers[product].time_us < 30


def test_a_refused_setup_does_not_stop_other_setups() -> None:
    good, bad = Setup(Deployment(tensor_parallel=2), 4), Setup(Deployment(tensor_parallel=3), 4)
    answers = server_steps(read_decoder(LLAMA), Load(128, 64), ServerKernels(gpu("h100-sxm")), "vllm", [good, bad])
    steps = answers[good]
    assert isinstance(steps, ServerSteps) and isinstance(answers[bad], InputError)
    assert sum(steps.parts.values()) == pytest.approx(1.0)


points = st.tuples(st.floats(0.1, 1e3), st.floats(0.1, 1e5))


@settings(max_examples=30)
@given(st.lists(points, min_size=1, max_size=30))
def test_no_configuration_dominates_the_pareto_front(servers: Serving, rates: list[tuple[float, float]]) -> None:
    row = servers.rows[0]
    rows = [replace(row, tokens_per_s_per_user=user, tokens_per_s_per_gpu=per_gpu) for user, per_gpu in rates]
    front = [(row.tokens_per_s_per_user, row.tokens_per_s_per_gpu) for row in pareto(rows)]
    assert front == sorted(front)
    for user, per_gpu in front:
        assert not any(u >= user and g >= per_gpu for u, g in rates if (u, g) != (user, per_gpu))


def test_the_first_example_of_the_page_has_four_lines_and_runs() -> None:
    (block, *_) = blocks(PAGE, "python")
    names: dict[str, Any] = {}
    assert len([line for line in block.text.splitlines() if line]) == 4
    exec(compile(block.text, str(PAGE), "exec"), names)
    best = names["servers"].best
    assert best.concurrency == 50 and best.tpot_ms <= 30
