"""A fake of NVIDIA's cudnn-frontend: it validates a convolution's graph and ranks the same plans for each.

On a handle of the fake GPU it also runs them, and each plan moves other bytes. FAKE_FRONTEND makes it fail: ``device``
(for every GPU), ``graph`` (for every problem), ``segfault`` (at the third problem), ``other`` (its cuDNN is another
one). FAKE_FAULTS names an execution ``execute`` with the plan's index.
"""

import json
import os
import signal
import tomllib
from enum import Enum
from math import prod
from pathlib import Path

PLANS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["plans"]
"""Plans of every ranking, best first: name, notes, workspace in KiB; engine 5 fails when it is built."""
__version__ = "1.18.0"
data_type = Enum("data_type", ["FLOAT", "DOUBLE", "HALF", "BFLOAT16"])
heur_mode = Enum("heur_mode", ["A", "FALLBACK"])
numerical_note = Enum(
    "numerical_note", ["TENSOR_CORE", "DOWN_CONVERT_INPUTS", "NONDETERMINISTIC", "FFT", "STRICT_NAN_PROP"]
)


class cudnnGraphNotSupportedError(Exception):  # noqa: N801 - the frontend's own name
    """Like the frontend's class, this is not a RuntimeError."""


def create_device_properties(text):
    if os.environ.get("FAKE_FRONTEND") == "device":
        raise RuntimeError("CUDNN_STATUS_NOT_INITIALIZED\nordered")
    return json.loads(text)


class Tensor:
    def __init__(self, dim=None, stride=None, data_type=None, name=""):
        self.dim, self.stride, self.data_type, self.name = dim, stride, data_type, name

    def set_output(self, output):
        assert output
        return self

    def set_data_type(self, data_type):
        self.data_type = data_type
        return self

    def set_dim(self, dim):
        self.dim = dim
        return self

    def set_stride(self, stride):
        self.stride = stride
        return self


class pygraph:  # noqa: N801
    graphs = 0

    def __init__(self, *, io_data_type, intermediate_data_type, compute_data_type, device_property=None, handle=None):
        assert (handle in HANDLES if device_property is None else device_property["deviceVer"]) and io_data_type
        self.compute = compute_data_type, intermediate_data_type
        self.refused, self.geometry, self.roles, self.ranked = set(), {}, {}, False

    def tensor(self, **described):
        return Tensor(**described)

    def conv_fprop(self, image, weight, **geometry):
        return self._convolution(geometry, x=image, w=weight, y=Tensor())

    def conv_dgrad(self, loss, filter, **geometry):
        return self._convolution(geometry, y=loss, w=filter, x=Tensor())

    def conv_wgrad(self, image, loss, **geometry):
        return self._convolution(geometry, x=image, y=loss, w=Tensor())

    def _convolution(self, geometry, **roles):
        self.geometry, self.roles = geometry, roles
        return next(tensor for tensor in roles.values() if tensor.dim is None)

    def validate(self):
        """Assert that the tensors have one order, one type, and the sizes of a convolution."""
        x, w, y = (self.roles[role] for role in "xwy")
        assert {x.name, w.name, y.name} < {"x", "w", "y", ""}
        double = x.data_type is data_type.DOUBLE
        assert x.data_type is w.data_type is y.data_type
        assert set(self.compute) == {data_type.DOUBLE if double else data_type.FLOAT}
        orders = []
        for tensor in (x, w, y):
            _, c, h, k = tensor.dim
            packed = {"NCHW": [c * h * k, h * k, k, 1], "NHWC": [c * h * k, 1, c * k, c]}
            orders.append({order for order, stride in packed.items() if stride == tensor.stride})
        assert set.intersection(*orders), "tensors in two orders"
        assert y.dim[0] == x.dim[0] and y.dim[1] == w.dim[0]
        assert x.dim[1] % w.dim[1] == 0 and w.dim[0] % (x.dim[1] // w.dim[1]) == 0
        for axis in (0, 1):
            pad, stride, dilation = (self.geometry[name][axis] for name in ("padding", "stride", "dilation"))
            reach = dilation * (w.dim[2 + axis] - 1) + 1
            assert y.dim[2 + axis] == (x.dim[2 + axis] + 2 * pad - reach) // stride + 1
        assert prod(y.dim)

    def build_operation_graph(self):
        if os.environ.get("FAKE_FRONTEND") == "graph":
            raise cudnnGraphNotSupportedError("ordered")

    def create_execution_plans(self, modes):
        assert modes == [heur_mode.A, heur_mode.FALLBACK]
        pygraph.graphs += 1
        if os.environ.get("FAKE_FRONTEND") == "segfault" and pygraph.graphs == 5:
            os.kill(os.getpid(), signal.SIGSEGV)
        self.ranked = True

    def deselect_numeric_notes(self, notes):
        assert self.ranked  # the frontend ignores an earlier call
        self.refused |= {note.name for note in notes}

    def get_execution_plan_count(self):
        return len(PLANS)

    def get_plan_name_at_index(self, index):
        return PLANS[index][0]

    def build_plan_at_index(self, index):
        name, notes, _ = PLANS[index]
        if self.refused.intersection(notes):
            raise cudnnGraphNotSupportedError("Deselecting execution plan")
        if name.startswith("eng5_"):
            raise RuntimeError("engine 5 refuses the problem after all")

    def get_workspace_size_plan_at_index(self, index):
        return 1024 * PLANS[index][2]

    def execute_plan_at_index(self, buffers, workspace, index, handle=None):
        """Launch one kernel over the tensors of the problem, on the memory that they were given."""
        from cuda_runtime import LIBRARY, Launch, Operand, fault

        assert HANDLES[handle] and {id(tensor) for tensor in buffers} == {id(each) for each in self.roles.values()}
        name, _, _ = PLANS[index]
        if LIBRARY.fake_error() or fault("execute", index):
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED:\nordered")
        itemsize = {data_type.FLOAT: 4, data_type.DOUBLE: 8}.get(self.roles["x"].data_type, 2)
        result = next(role for role, tensor in self.roles.items() if not tensor.name)
        sizes = {role: itemsize * prod(tensor.dim) for role, tensor in self.roles.items()}
        operands = [
            Operand(role.encode(), buffers[tensor], sizes[role], role == result, 16)
            for role, tensor in self.roles.items()
        ]
        operands.append(Operand(b"workspace", workspace, 1024 * PLANS[index][2], 1, 16))
        if not LIBRARY.fake_reachable(name.encode(), (Operand * len(operands))(*operands), len(operands)):
            return
        moved = (1.0 + 0.1 * (index % 7)) * sum(sizes.values())
        LIBRARY.fake_launch(Launch(f"_Z{len(name)}{name}v".encode(), (8, 1, 1), (128, 1, 1), 64, 0, 0, 0.0, moved))


HANDLES: dict[object, object] = {}
"""Handle → its stream."""


def create_handle():
    handle = object()
    HANDLES[handle] = None
    return handle


def destroy_handle(handle):
    del HANDLES[handle]


def set_stream(*, handle, stream):
    assert stream
    HANDLES[handle] = stream


def backend_version():
    return 90000 if os.environ.get("FAKE_FRONTEND") == "other" else int(os.environ.get("FAKE_CUDNN_VERSION", "91002"))
