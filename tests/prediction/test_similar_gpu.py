"""Which GPUs lend: known answers from data sheets."""

from surrogate.features.families import FAMILIES
from surrogate.features.gpu import gpu
from surrogate.prediction.sources.similar_gpu import same_architecture_gpus
from tests.known import cases

GEMM = FAMILIES["gemm"]
MEASURED = {name: gpu(name) for name in ("b200", "gb200", "gb300", "h100-sxm", "h200-sxm", "l40s", "a100-sxm4-80gb")}


def setting(dtype: str) -> tuple[str, ...]:
    named = {"operator": "gemm", "dtype": dtype, "math": "default", "variant": ""}
    return tuple(named[name] for name in GEMM.setting_names)


@cases(__file__)
def test_the_nearest_has_the_compute_capability_and_the_ratio(name, dtype, expected, is_donor):
    assert same_architecture_gpus(GEMM, setting(dtype), gpu(name), MEASURED) == (
        tuple(expected),
        tuple(expected[:is_donor]),
    )
