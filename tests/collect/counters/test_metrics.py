"""CUPTI's host library knows the metrics of every chip and needs no GPU (cupti_profiler_host.h)."""

import ctypes
from importlib.metadata import PackageNotFoundError, files

import pytest

from surrogate.collect.counting import metrics_of
from tests.known import known_answers

CHIPS = known_answers(__file__)["chips"]
POINTER, SIZE, NAMES = ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p)


@pytest.fixture(scope="module")
def call():
    """Return ``call(name, *fields)``, which calls a function on a structure of these fields and returns it."""
    try:
        paths = files("nvidia-cuda-cupti-cu12") or ()
    except PackageNotFoundError:
        pytest.skip("nvidia-cuda-cupti-cu12 is not installed")
    library = ctypes.CDLL(str(next(path.locate() for path in paths if path.name == "libcupti.so.12")))

    def call(name, *fields):
        kinds = [("size", SIZE), ("private", POINTER), *((field, kind) for field, kind, _ in fields)]
        structure = type("Arguments", (ctypes.Structure,), {"_fields_": kinds})
        arguments = structure(0, None, *(value for _, _, value in fields))
        arguments.size = ctypes.sizeof(arguments)
        assert getattr(library, f"cuptiProfilerHost{name}")(ctypes.byref(arguments)) == 0, name
        return arguments

    return call


@pytest.mark.parametrize(("chip", "capability"), CHIPS.items())
def test_cupti_accepts_all_metrics_in_three_passes(call, chip, capability):
    names = [name.encode() for name in metrics_of(capability) if not name.startswith(("launch__", "device__"))]
    image, name = ("image", POINTER, None), ("chip", ctypes.c_char_p, chip.encode())
    initialized = call("Initialize", ("kind", ctypes.c_int, 0), name, image, ("host", POINTER, None))
    host = ("host", POINTER, initialized.host)
    array = ("names", NAMES, (ctypes.c_char_p * len(names))(*names))
    call("ConfigAddMetrics", host, array, ("count", SIZE, len(names)))
    size = call("GetConfigImageSize", host, ("bytes", SIZE, 0)).bytes
    config = ("config", POINTER, ctypes.addressof(buffer := ctypes.create_string_buffer(size)))
    call("GetConfigImage", host, ("bytes", SIZE, size), config)
    passes = call("GetNumOfPasses", ("bytes", SIZE, len(buffer)), config, ("passes", SIZE, 0)).passes
    assert passes <= 3
