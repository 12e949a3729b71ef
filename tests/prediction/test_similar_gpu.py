"""Tests of the choice of donor GPUs, with known answers from datasheets."""

import pytest

from surrogate.features.families import FAMILIES
from surrogate.features.gpu import gpu
from surrogate.prediction.sources.similar_gpu import same_architecture_gpus

GEMM = FAMILIES["gemm"]
MEASURED = {name: gpu(name) for name in ("b200", "gb200", "gb300", "h100-sxm", "h200-sxm", "l40s", "a100-sxm4-80gb")}


def setting(dtype: str) -> tuple[str, ...]:
    values = {"operator": "gemm", "dtype": dtype, "math": "default", "variant": ""}
    return tuple(values[name] for name in GEMM.setting_names)


@pytest.mark.parametrize(
    ("name", "dtype", "similar", "donors"),
    [
        ("b300", "bf16", ("gb300", "b200", "gb200"), 3),  # 10.3 as GB300; 290, 312, 281 and 312 FLOPs a byte
        ("b300", "nvfp4", ("gb300", "gb200", "b200"), 2),  # 1,806 against 1,875, 1,250 and 1,125: 1.605 times less
        ("h100-nvl", "bf16", ("h200-sxm", "h100-sxm"), 2),  # 212 against 206 and 295
        ("h20", "bf16", ("h200-sxm", "h100-sxm"), 0),  # 37
        ("rtx-4090", "bf16", ("l40s",), 0),  # 164 against 419
        ("rtx-3090", "bf16", (), 0),
        ("mi300x", "bf16", (), 0),
    ],
)
def test_donors_have_the_compute_capability_and_a_near_flops_per_byte(name, dtype, similar, donors):
    """Comments give the ratio of peak FLOPs to memory bandwidth: the GPU's own, then each similar GPU's."""
    assert same_architecture_gpus(GEMM, setting(dtype), gpu(name), MEASURED) == (similar, similar[:donors])
