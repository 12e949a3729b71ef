"""Operator problems, what they compute, and their loop."""

import ctypes
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogate.collect.cudnn.library import PROTOTYPES as CONVOLUTIONS
from surrogate.collect.cudnn.library import Library
from surrogate.collect.device import DeviceInfo, DeviceLostError, Measurement
from surrogate.collect.merge import merge_runs
from surrogate.collect.operators.collect import collect_operators
from surrogate.collect.operators.gpu import (
    CUDNN_KINDS,
    SOURCE,
    CudnnCalls,
    CupyCalls,
    cupy_stream,
)
from surrogate.collect.operators.operator import KINDS, MIN_BYTES, Operator, parse, sampled
from surrogate.collect.run import MAX_LOST_IN_A_ROW
from surrogate.features.errors import InputError
from surrogate.features.families import FAMILY_OF_KIND

SMALL = 1 << 18


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5), st.integers(1, 40))
def test_samples_are_distinct_within_bytes_and_readable_again(seed, count):
    operators = sampled(count, seed, SMALL)
    assert len(set(operators)) == count and operators == sampled(count, seed, SMALL)
    assert all(MIN_BYTES <= one.bytes <= SMALL and parse(one.key) == one for one in operators)


@pytest.mark.parametrize(
    ("kind", "sizes", "words"),
    [
        ("sotfmax", (1, 2), "did you mean softmax"),
        ("softmax", (1,), "are needed for n, c"),
        ("gemm", (1, 0, 3, 4), "at least 1"),
        ("max_pool", (1, 1, 4, 4, 5, 1), "window 5 exceeds"),
    ],
)
def test_a_wrong_operator_is_refused(kind, sizes, words):
    with pytest.raises(InputError, match=words):
        Operator(kind, sizes)
    with pytest.raises(InputError, match="needs n, c; m came"):
        Operator.of("softmax", m=1)


def test_bytes_hold_every_tensor_once():
    assert Operator("gemm", (2, 3, 5, 7)).bytes == 4 * 2 * (21 + 35 + 15)
    assert Operator("add", (1, 2, 3, 4)).bytes == 4 * 72
    assert Operator("max_pool", (1, 1, 4, 4, 2, 2)).bytes == 4 * (16 + 4)
    assert Operator("embedding_bag", (8, 10, 3, 4, 16, 4)).bytes == 4 * 3 * (160 + 32 + 128)


class Fake:
    """A device with a clock; it is lost at some problems."""

    def __init__(self, lost_at=()):
        self.seen, self.lost_at, self.now_s = [], lost_at, 0.0

    def describe(self):
        return DeviceInfo("Fake GPU", "cuda", "9.1.0")

    def measure(self, operator, policy):
        self.seen.append(operator)
        self.now_s += 10.0
        if operator.key in self.lost_at:
            raise DeviceLostError("sticky")
        return Measurement("ok", "", (3.0, 1.0, 2.0), (4.0, 4.0, 4.0), "cupti")

    def conditions(self):
        return {"sm_clock_mhz": 1980.0, "temperature_c": 50.0}

    def close(self):
        pass


def test_the_loop_keeps_to_its_time_and_goes_on(tmp_path):
    operators, path, device = sampled(8, 0), tmp_path / "run.jsonl", Fake()
    outcome = collect_operators(operators, device, path, minutes=0.75, clock=lambda: device.now_s)
    assert outcome.time_up and outcome.problems_done == 4
    again = Fake()
    assert collect_operators(operators, again, path).finished and again.seen == operators[4:]
    assert merge_runs([path]).frame["time_us"].tolist() == [2.0] * 8


def test_every_kind_becomes_a_row_of_its_family(tmp_path):
    path = tmp_path / "run.jsonl"
    assert collect_operators(sampled(len(KINDS), 1, SMALL), Fake(), path).statuses == {"ok": len(KINDS)}
    rows = merge_runs([path]).frame.set_index("operator")
    assert rows["family"].to_dict() == {kind: FAMILY_OF_KIND[kind] for kind in KINDS}
    for name, value in {"gpu": "Fake GPU", "library": "cuda", "dtype": "fp32", "math": "fma",
                        "algorithm": "default", "status": "ok", "timer": "cupti"}.items():  # fmt: skip
        assert set(rows[name]) == {value}, name
    assert rows.loc["gemm", ["batch", "m", "n", "k"]].notna().all() and np.isnan(rows.loc["gemm", "h"])
    pool = rows.loc["max_pool"]
    assert pool["window_w"] == pool["window"] and pool["pad"] == 0


def test_a_lost_device_costs_one_problem_and_one_lost_for_good_ends_the_call(tmp_path):
    operators, path = sampled(9, 0), tmp_path / "run.jsonl"
    assert collect_operators(operators, Fake({operators[1].key}), path).finished
    assert merge_runs([path]).frame["status"].tolist() == ["ok", "failed", *["ok"] * 7]
    outcome = collect_operators(operators, Fake({one.key for one in operators}), tmp_path / "gone.jsonl")
    assert outcome.problems_done == MAX_LOST_IN_A_ROW and "lost" in outcome.stopped and not outcome.time_up


@pytest.fixture
def functions(cudnn_functions):
    return cudnn_functions()


@pytest.fixture
def calls(functions):
    library = Library(functions, "")
    library.declare(CONVOLUTIONS)
    return CudnnCalls(library, ctypes.c_void_p(1))


def array(shape):
    return SimpleNamespace(data=SimpleNamespace(ptr=id(shape)), shape=shape)


@pytest.mark.parametrize("kind", CUDNN_KINDS)
def test_every_cudnn_operator_calls_its_function_with_arguments_that_fit(functions, calls, kind):
    operator = next(one for one in sampled(60, 0, SMALL) if one.kind == kind)
    prepared = calls.prepare(operator, array)
    functions.described = functions.calls["cudnnSetTensor4dDescriptor"]
    functions.calls.clear()
    prepared()
    stem = {"max_pool": "PoolingForward", "max_pool_backward": "PoolingBackward", "relu": "ActivationForward",
            "batch_norm": "BatchNormalizationForwardTraining", "layout_transform": "TransformTensor",
            "softmax": "SoftmaxForward"}[kind]  # fmt: skip
    assert list(functions.calls) == [f"cudnn{stem}"]
    if kind == "layout_transform":
        assert functions.described[1:] == [1, 0, *operator.sizes]
    calls.close()
    assert functions.live == 0


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"embedding_bag", "embedding_bag_backward"}))
def test_a_prepared_call_keeps_its_arrays_alive(calls, kind):
    """CuPy's pool hands memory to the next caller once no array holds it."""
    arrays = []

    class Held(np.ndarray):
        """An array that can be referred to weakly, with a pointer as CuPy's arrays have it."""

        @property
        def data(self):
            return SimpleNamespace(ptr=self.ctypes.data)

    def empty(shape):
        made = np.ones(shape, np.float32).view(Held)
        arrays.append(weakref.ref(made))
        return made

    operator = next(one for one in sampled(60, 0, SMALL) if one.kind == kind)
    prepared = (calls if kind in CUDNN_KINDS else CupyCalls(Cupy())).prepare(operator, empty)
    assert arrays and all(reference() is not None for reference in arrays)
    prepared()


class Cupy:
    """NumPy under CuPy's names, with kernels that note their launches."""

    int32, int64, float32 = np.int32, np.int64, np.float32

    def __init__(self):
        self.launches, self.random = [], np.random.RandomState(0)
        self.matmul, self.add = np.matmul, np.add

    def RawModule(self, code):  # noqa: N802
        def function(name):
            assert f"void {name}(" in code
            return lambda grid, block, arguments: self.launches.append((name, grid, block, arguments))

        return SimpleNamespace(get_function=function)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(CUDNN_KINDS)))
def test_every_other_operator_runs_its_call(kind):
    cupy = Cupy()
    operator = next(one for one in sampled(60, 0, SMALL) if one.kind == kind)
    made = []

    def empty(shape):
        made.append(np.ones(shape, np.float32))
        return made[-1]

    CupyCalls(cupy).prepare(operator, empty)()
    if kind.startswith("embedding"):
        ((name, grid, block, arguments),) = cupy.launches
        samples = operator["batch"] * operator["tables"]
        assert grid[0] * operator["rows_per_block"] >= samples > (grid[0] - 1) * operator["rows_per_block"]
        assert block == (32, operator["rows_per_block"]) and arguments[1].dtype == np.int32
        signature = SOURCE.split(f"void {name}(")[1].split(")")[0]
        assert len(arguments) == len(signature.split(","))
    elif kind == "gemm":
        assert (made[2] == operator["k"]).all() and made[2].shape[-2:] == (operator["m"], operator["n"])
    else:
        assert (made[2] == 2).all()


def test_a_borrowed_stream_is_taken_by_either_cupy():
    class Older:
        class cuda:  # noqa: N801
            Stream, ExternalStream = object, staticmethod(lambda pointer: ("external", pointer))

    class Newer:
        class cuda:  # noqa: N801
            class Stream:
                from_external = staticmethod(lambda stream: ("protocol", stream.__cuda_stream__()))

    assert cupy_stream(Older, 7) == ("external", 7)
    assert cupy_stream(Newer, 7) == ("protocol", (0, 7))
