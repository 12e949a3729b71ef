"""Descriptors and what is asked of them, against a stand-in for cuDNN and, where installed, the library."""

import json

import pytest

from surrogate.collect.cudnn.status import CudnnError
from surrogate.collect.graph.attributes import NUMERICAL_NOTES, Attribute, Descriptor, Kind, note_name
from surrogate.collect.graph.backend import Scope
from surrogate.collect.graph.plans import EnginePlan, Target, engine_count, engine_plan, finalized, ranked
from surrogate.collect.graph.problem import operation_graph, strides, tensor_dims
from surrogate.collect.graph.properties import properties_json
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu, gpus
from surrogate.features.occupancy import LIMITS
from surrogate.features.text import parse

CONV = parse("n8c64h14w20k32r3s1p1q0u2v1l1g4")


def test_strides_are_those_of_a_packed_tensor():
    assert strides((2, 3, 5, 7), "NCHW") == (105, 35, 7, 1)
    assert strides((2, 3, 5, 7), "NHWC") == (105, 1, 21, 3)


def test_groups_show_in_the_filter_alone():
    dims = tensor_dims(CONV)
    assert dims == {"x": (8, 64, 14, 20), "w": (32, 16, 3, 1), "y": (8, 32, CONV.out_h, CONV.out_w)}


@pytest.mark.parametrize(
    ("direction", "descriptor", "first"),
    [("fwd", 10, 700), ("bwd_data", 12, 706), ("bwd_filter", 11, 712)],
)
def test_the_operation_is_the_directions_own(backend, fake_cudnn, direction, descriptor, first):
    conv = parse(str(CONV), direction=direction, layout="NHWC", dtype="fp16", math="tensor_op")
    with Scope(backend) as scope:
        operation_graph(scope, conv)
        operation = next(r for r in fake_cudnn.live.values() if r["kind"] == descriptor)
        tensors = {r[906][0]: r for r in fake_cudnn.live.values() if r["kind"] == Descriptor.TENSOR}
        convolution = next(r for r in fake_cudnn.live.values() if r["kind"] == Descriptor.CONVOLUTION)
        assert (operation[first], operation[first + 1]) == ([1.0], [0.0])
        roles = [fake_cudnn.live[operation[first + at][0]] for at in (3, 4, 5)]
        assert [role[Attribute.TENSOR_UNIQUE_ID][0] for role in roles] == [2, 1, 3]  # w, x, y
    assert tensors[1][Attribute.TENSOR_STRIDES] == [64 * 14 * 20, 1, 20 * 64, 64]
    assert tensors[2][Attribute.TENSOR_DATA_TYPE] == [2]
    assert convolution[Attribute.CONVOLUTION_STRIDES] == [2, 1]
    assert convolution[Attribute.CONVOLUTION_PRE_PADDINGS] == [1, 0]
    assert convolution[Attribute.CONVOLUTION_COMPUTE_TYPE] == [0]  # fp16 adds in fp32


def test_everything_made_is_destroyed(backend, fake_cudnn):
    with Scope(backend) as scope:
        graph = operation_graph(scope, CONV)
        list(ranked(scope, graph, "A", Target()))
        assert fake_cudnn.live
    assert fake_cudnn.live == {} and fake_cudnn.made > 10


def test_the_ranking_keeps_its_order_knobs_and_notes(backend):
    with Scope(backend) as scope:
        plans = list(ranked(scope, operation_graph(scope, CONV), "B", Target()))
        assert [(plan.algorithm, plan.knobs, plan.numerical) for plan in plans] == [
            ("engine:67", ((2, 12), (14, 3)), ("tensor_core",)),
            ("engine:1", (), ()),
            ("engine:1", ((2, 5),), ()),
            ("engine:0", (), ("strict_nan_prop",)),
        ]
        assert finalized(scope, plans[0], Target())[1] == 67000


def test_an_unsupported_engine_is_refused_by_status(backend, fake_cudnn):
    fake_cudnn.unsupported = {2}
    with Scope(backend) as scope:
        graph = operation_graph(scope, CONV)
        assert engine_count(scope, graph) == 68
        assert engine_plan(scope, graph, 1, Target()).engine == 1
        with pytest.raises(CudnnError) as caught:
            engine_plan(scope, graph, 2, Target())
    assert caught.value.status == "not_supported"


@pytest.mark.parametrize(
    ("dtype", "math", "notes", "allowed"),
    [
        ("fp32", "fma", ("tensor_core",), False),
        ("fp32", "fma", ("down_convert_inputs",), False),
        ("fp32", "fma", ("winograd",), True),
        ("fp32", "default", ("tensor_core",), True),
        ("fp16", "tensor_op", ("tensor_core",), True),
        ("fp16", "fma", ("tensor_core",), True),
    ],
)
def test_fma_math_admits_no_tensor_cores_in_fp32(dtype, math, notes, allowed):
    assert EnginePlan(1, numerical=notes).allowed(dtype, math) is allowed


def test_notes_have_names_and_newer_ones_their_number():
    assert note_name(NUMERICAL_NOTES, 5) == "winograd"
    assert note_name(NUMERICAL_NOTES, 99) == "note_99"


def test_every_nvidia_gpu_of_the_registry_can_be_described():
    known = [one for one in gpus() if one.vendor == "nvidia" and one.compute_capability in LIMITS]
    described = [json.loads(properties_json(one)) for one in known]
    assert len(described) > 20
    assert {len(one) for one in described} == {23}
    h200 = json.loads(properties_json(gpu("h200")))
    assert h200["deviceVer"] == 900
    assert h200["multiProcessorCount"] == 132
    assert h200["maxSharedMemoryPerBlockOptin"] == 227 * 1024
    assert h200["smClockRateKHz"] == 1_980_000


@pytest.mark.parametrize("name", ["mi100", "k80"])
def test_a_gpu_that_cudnn_cannot_know_is_refused(name):
    with pytest.raises(InputError, match=f"{name}.*cannot be described.*compute capability"):
        properties_json(gpu(name))


def test_the_real_library_takes_the_description_and_lists_engines(real_backend):
    from surrogate.collect.graph.properties import described_gpu

    conv = parse("n32c256h14w14k256r3s3p1u1")
    with Scope(real_backend) as scope:
        target = Target(properties=described_gpu(scope, gpu("v100")))
        graph = operation_graph(scope, conv)
        workspace = {}
        for number in range(3):
            plan = engine_plan(scope, graph, number, target)
            workspace[number] = finalized(scope, plan, target)[1]
    im2col_bytes = 32 * 256 * 3 * 3 * 14 * 14 * 4
    assert workspace[0] == 0 and workspace[2] == im2col_bytes and 0 < workspace[1] < 1 << 20


def test_an_attribute_that_is_unknown_here_is_told_by_number(backend, fake_cudnn):
    functions = fake_cudnn.functions()
    functions.cudnnBackendSetAttribute = lambda *_: 2000
    broken = type(backend)(backend.library, functions)
    with Scope(broken) as scope:
        made = scope.make(Descriptor.TENSOR)
        with pytest.raises(CudnnError, match="setting attribute 9999: STATUS_2000"):
            scope.set(made, 9999, Kind.INT64, 1)
