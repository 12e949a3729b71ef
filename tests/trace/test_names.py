"""Short names of kernels: what people read, and that distinct names stay distinct."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.trace.events import kinds
from surrogate.trace.result import LONGEST, short_names

ADD = "void at::native::elementwise_kernel<4, at::native::CUDAFunctor_add<{0}>, std::array<char*, 3ul> >(int, {0})"
GELU = "void at::native::elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::Tensor&)::{lambda()#2}>(int)"
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_{}_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1"
AITER = "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi{}ELi16EEEvPT0_"
SHORT = [
    {ADD.format("float"): "elementwise_kernel<CUDAFunctor_add>", GELU: "elementwise_kernel<GeluCUDAKernelImpl>"},
    {ADD.format(name): f"elementwise_kernel<CUDAFunctor_add, {name}>" for name in ("int", "long")},
    {TENSILE.format(tile): TENSILE.format(tile).partition("_MI")[0] for tile in ("MT320x224x64", "MT16x16x256")},
    {AITER.format(block): f"add_rmsnorm_quant_kernel<{block}>" for block in (256, 64)},
    {"void f<1>(int)": "f<int>", "void f<1>(long)": "f<long>", "void gemvx::kernel<int>(int)": "gemvx::kernel"},
    {"void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_tn>(Params)": "cutlass_80_tensorop_s1688gemm_tn",
     "std::enable_if<(((8)>(0)))&&v::exists, void>::type v::fused_norm_kernel<float, 8>(float*)": "fused_norm_kernel",
     "void (anonymous namespace)::softmax_warp<float, 10>(int)": "softmax_warp",
     "volta_sgemm_64x64_nt": "volta_sgemm_64x64_nt", "Memset (Device)": "Memset (Device)"},
]  # fmt: skip


@pytest.mark.parametrize("short", SHORT)
def test_known_names(short):
    assert short_names(short) == short


PIECE = st.sampled_from([*"<>(){},:_ x7", "::", "at::native::", "void ", "Kernel2<", "reduce_kernel<", "_ZN1a"])


@given(st.lists(st.lists(PIECE, max_size=40).map("".join) | st.text(max_size=80), max_size=12, unique=True))
def test_distinct_names_stay_distinct_and_short(names):
    short = short_names(names)
    assert list(short) == names and len(set(short.values())) == len(names)
    assert all(len(text) <= LONGEST for text in short.values())


TRACES = ("vgg13_b128_training_h100.json.gz", "resnet50_b32_training_v100.json.gz",
          "resnet_training_2080ti_no_dims.json.gz", "nsys_power_iteration.sqlite")  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_names_of_real_traces(real, name):
    trace = real(name)
    kernels = np.unique(trace.activities.name[trace.activities.kind == kinds.KERNEL])
    short = set(short_names(trace.names[i] for i in kernels).values())
    assert len(short) == len(kernels) > 5 and max(map(len, short)) <= LONGEST
    assert not any(part in text for text in short for part in ("void ", "at::", "cutlass::", "std::", "("))
