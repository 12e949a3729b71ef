"""``seer serving``: table, JSON, page, refusals and exit status."""

from pathlib import Path
from typing import Any

from tests.known import known_answers

COMMAND = known_answers(__file__)["command"].split()


def test_json_has_every_configuration_and_text_has_the_best(seer: Any, tmp_path: Path) -> None:
    page = tmp_path / "servers.html"
    run = seer(*COMMAND, "--tpot", 30, "--price", "h100-sxm=2.5", "--html", page, "--json").succeeded()
    rows, best = run.json["rows"], run.json["best"]
    assert all(set(row) >= {*known_answers(__file__)["keys"]} for row in rows) and best == rows[0]
    found = {(row["dtype"], row["tensor_parallel"], row["concurrency"]) for row in rows}
    assert found >= {("fp8", 2, 16), ("bf16", 1, 8)}
    assert all(row["ttft_low_ms"] < row["ttft_ms"] < row["ttft_high_ms"] for row in rows)
    assert "<svg" in page.read_text(encoding="utf-8")
    middle = sorted(row["tpot_ms"] for row in rows)[len(rows) // 2]
    texts = [seer(*COMMAND, *target).succeeded().out for target in (("--launch",), ("--tpot", middle))]
    assert ["\nvllm serve meta-llama/" in text for text in texts] == [True, False] and best["launch"].startswith("vllm")
    csv = [seer(*COMMAND, "--csv", *words).succeeded().out for words in ((), ("--launch",))]
    assert ["launch" in text.partition("\n")[0] for text in csv] == [False, True]
    assert all("TPOT, ms" in text for text in texts)
    assert ["may meet the targets" in text for text in texts] == [False, True]


def test_unmet_targets_exit_with_status_1(seer: Any) -> None:
    run = seer(*COMMAND, "--tpot", 0.001, "--json")
    assert run.code == 1 and run.json["best"] is None and run.json["rows"]
    assert "no configuration meets the targets" in run.err


def test_a_decoding_step_uses_the_deployment_options(seer: Any) -> None:
    words = ("network", "deepseek-v3", "--gpu", "h200-sxm", "--library", "sglang", "--decode", 1024, "--batch", 32)
    spread = seer(*words, "--tensor-parallel", 8, "--expert-parallel", 8, "--json").succeeded().json
    experts = [layer["problem"] for layer in spread["layers"] if layer["operator"] == "experts"]
    assert experts and all("ep8" in problem for problem in experts)
    balanced = seer(*words, "--tensor-parallel", 8, "--routing", "balanced", "--json").succeeded().json
    default = seer(*words, "--tensor-parallel", 8, "--json").succeeded().json
    assert default["total_us"] < balanced["total_us"]  # 32 tokens do not reach all 256 experts
    narrow = ("--kv-dtype", "fp8", "--pipeline-parallel", 2)
    smaller = seer(*words, "--tensor-parallel", 8, *narrow, "--json").succeeded().json
    assert smaller["memory_bytes"] < 0.6 * balanced["memory_bytes"]
