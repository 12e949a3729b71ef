"""Which GPUs lend: known answers from data sheets."""

import pytest

from surrogate.features.families import FAMILIES
from surrogate.features.gpu import gpu
from surrogate.models.alike import nearest, siblings

GEMM = FAMILIES["gemm"]
MEASURED = {name: gpu(name) for name in ("b200", "gb200", "gb300", "h100-sxm", "h200-sxm", "l40s", "a100-sxm4-80gb")}


def setting(dtype: str) -> tuple[str, ...]:
    named = {"operator": "gemm", "dtype": dtype, "math": "default", "variant": ""}
    return tuple(named[name] for name in GEMM.setting_names)


@pytest.mark.parametrize(
    ("name", "dtype", "wanted", "lends"),
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
def test_the_nearest_has_the_compute_capability_and_the_ratio(
    name: str, dtype: str, wanted: tuple[str, ...], lends: int
) -> None:
    assert siblings(GEMM, setting(dtype), gpu(name), MEASURED) == (wanted, wanted[:lends])


def test_without_a_sibling_the_nearest_rates_count_within_the_vendor() -> None:
    others = {**MEASURED, "mi300x": gpu("mi300x")}
    assert nearest(GEMM, setting("bf16"), gpu("rtx-pro-6000-server"), others) == "a100-sxm4-80gb"
    assert nearest(GEMM, setting("bf16"), gpu("mi210"), others) == "mi300x"
    assert nearest(GEMM, setting("bf16"), gpu("b60"), others) is None
