"""Which GPUs lend: known answers from data sheets."""

from surrogate.features.families import FAMILIES
from surrogate.features.gpu import gpu
from surrogate.models.alike import nearest, siblings
from tests.known import cases

GEMM = FAMILIES["gemm"]
MEASURED = {name: gpu(name) for name in ("b200", "gb200", "gb300", "h100-sxm", "h200-sxm", "l40s", "a100-sxm4-80gb")}


def setting(dtype: str) -> tuple[str, ...]:
    named = {"operator": "gemm", "dtype": dtype, "math": "default", "variant": ""}
    return tuple(named[name] for name in GEMM.setting_names)


@cases(__file__)
def test_the_nearest_has_the_compute_capability_and_the_ratio(name, dtype, wanted, lends):
    assert siblings(GEMM, setting(dtype), gpu(name), MEASURED) == (tuple(wanted), tuple(wanted[:lends]))


def test_without_a_sibling_the_nearest_rates_count_within_the_vendor() -> None:
    others = {**MEASURED, "mi300x": gpu("mi300x")}
    assert nearest(GEMM, setting("bf16"), gpu("rtx-pro-6000-server"), others) == "a100-sxm4-80gb"
    assert nearest(GEMM, setting("bf16"), gpu("mi210"), others) == "mi300x"
    assert nearest(GEMM, setting("bf16"), gpu("b60"), others) is None
