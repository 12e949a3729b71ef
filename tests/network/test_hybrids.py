"""Language models with a mixer instead of attention in most layers: weights, kernels, state, and refusals."""

from typing import Any

import pytest

from surrogate.features.families.attention import AttentionOperator
from surrogate.features.families.gemm import Gemm
from surrogate.features.families.moe import Moe
from surrogate.features.families.operator import Streamed
from surrogate.network.language import Deployment
from surrogate.network.language_config import read_decoder
from surrogate.network.language_step import Requests, Step, StepKernel
from tests.known import cases, known_answers

ROWS = known_answers(__file__)
SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32}
SMALL |= {"head_dim": 16, "vocab_size": 128}
MAMBA_2 = {**SMALL, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 32, "chunk_size": 16}
NEMOTRON = {"model_type": "nemotron_h", "hybrid_override_pattern": "M*E-", **MAMBA_2, "n_routed_experts": 4}
NEMOTRON |= {"num_experts_per_tok": 2, "moe_intermediate_size": 48, "moe_latent_size": 32}


def _sizes(kernel: StepKernel) -> list[int]:
    problem: Any = kernel.problem
    if isinstance(problem, Gemm):
        return [problem.k, problem.n]
    return [problem.reads, problem.writes] if isinstance(problem, Streamed) else [problem.elements, problem.ranks]


@pytest.mark.parametrize("row", ROWS["test_parameter_count_matches_the_published_count"]["rows"])
def test_parameter_count_matches_the_published_count(row: dict[str, Any]) -> None:
    network = Step(read_decoder(row["config"]), [Requests(1, 1, 100)], Deployment(), 1).network
    assert sum(layer.parameters for layer in network.layers) / 1e9 == pytest.approx(row["billions"], rel=1e-3)
    assert "state-space layers are timed by" in network.notes[0] and "not understood" not in str(network.notes)


@pytest.mark.parametrize("row", ROWS["test_a_mixer_has_products_a_convolution_and_a_scan"]["rows"])
def test_a_mixer_has_products_a_convolution_and_a_scan(row: dict[str, Any]) -> None:
    decoder, deployment = read_decoder({**SMALL, **row["config"]}), Deployment(tensor_parallel=row.get("gpus", 1))
    step = Step(decoder, [Requests(2, 1, 9)], deployment, 2)
    kernels = {kernel.name: kernel for kernel in step.by_kind[step.layers[0]]}
    assert {name: _sizes(kernels[name]) for name in row["kernels"]} == row["kernels"]
    assert step.kv_bytes == 2 * row["state"]  # does not grow with the context
    assert not any(isinstance(kernel.problem, AttentionOperator) for kernel in kernels.values())


def test_a_prompt_moves_the_state_once_per_chunk() -> None:
    """40 tokens are 3 chunks, whose states of 8 × 32 × 16 values are moved twice; each token has 8 scans."""
    step = Step(read_decoder(NEMOTRON), [Requests(1, 40, 40)], Deployment(), 40)
    scan = next(kernel.problem for kernel in step.by_kind[step.layers[0]] if kernel.name == "scan")
    assert (scan.reads, scan.writes) == (24576 + 40 * (4 * 64 + 128), 24576 + 40 * 128)
    assert scan.flops == pytest.approx(40 * 8 * (2 * 16 * (32 + 16) + 4 * 32 * 16), rel=0.02)


def test_layers_of_nemotron_have_one_part_each() -> None:
    step = Step(read_decoder(NEMOTRON), [Requests(1, 1, 10)], Deployment(), 1)
    names = [[kernel.name for kernel in step.by_kind[kind]] for kind in step.layers]
    assert [len(set(each) & {"scan", "attention", "experts", "up_proj"}) for each in names] == [1, 1, 1, 1]
    moe = next(kernel.problem for kernel in step.by_kind[step.layers[2]] if isinstance(kernel.problem, Moe))
    assert (moe.hidden, moe.matrices) == (32, 2) and {"latent_in_proj", "latent_out_proj"} <= set(names[2])
    assert step.kv_bytes == 17920 + 10 * 2 * 2 * 16 * 2


def test_an_unknown_type_is_read_as_the_hybrid_with_its_mixer() -> None:
    notes = read_decoder({**NEMOTRON, "model_type": "nemotron_h_2", "num_hidden_layers": 4}).notes
    assert "nemotron_h_2' is unknown; it is read as nemotron_h" in "".join(notes)


@cases(__file__)
def test_contradictory_layers_are_refused(refused: Any, fields: dict[str, Any], message: str) -> None:
    with refused(message):
        read_decoder({**NEMOTRON, **fields})
