"""Bind the fake CUDA runtime by ctypes; it shares memory, clock and launches with the fake libcudnn."""

import ctypes
import os

Pointer, Size, Int = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
SOFT, MEMORY, ERROR, LATE = 4, 5, 7, 8
"""Values that `fault` returns, from fake.h."""
NAMES = {
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    35: ("cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    600: ("cudaErrorNotReady", "device not ready"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    701: ("cudaErrorLaunchOutOfResources", "too many resources requested for launch"),
    716: ("cudaErrorMisalignedAddress", "misaligned address"),
}


class Launch(ctypes.Structure):
    """fake.h's Launch."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("registers", ctypes.c_uint32),
        ("fixed_shared", ctypes.c_uint32),
        ("dynamic_shared", ctypes.c_uint32),
        ("flops", ctypes.c_double),
        ("bytes", ctypes.c_double),
    )


class Operand(ctypes.Structure):
    """fake.h's Operand."""

    _fields_ = (
        ("role", ctypes.c_char_p),
        ("start", Pointer),
        ("bytes", Size),
        ("written", Int),
        ("alignment", ctypes.c_uint32),
    )


class Record(ctypes.Structure):
    """cuda.c's Record: one of CUPTI's activities."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("correlation_id", ctypes.c_uint32),
        ("start", Size),
        ("end", Size),
        ("bytes", Size),
        ("external_id", Size),
        ("launch", Size),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("registers_per_thread", ctypes.c_uint32),
        ("static_shared_memory", ctypes.c_uint32),
        ("dynamic_shared_memory", ctypes.c_uint32),
        ("name", ctypes.c_char * 160),
    )


def _loaded() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["SEER_CUDNN"], mode=ctypes.RTLD_GLOBAL)
    for name, arguments in {
        "malloc": (Size, ctypes.POINTER(Pointer)),
        "free": (Pointer,),
        "memset": (Pointer, Int, Size),
        "memcpy": (Pointer, Pointer, Size, Int),
        "event": (ctypes.POINTER(Size),) * 2,
        "query": (Size,),
        "synchronize": (),
        "held_down": (),
        "error": (),
        "profiler": (Int,),
        "enable": (Int, Int),
        "push": (ctypes.c_uint32, Size),
        "pop": (ctypes.POINTER(Size),),
        "flush": (Int, ctypes.POINTER(ctypes.POINTER(Record))),
        "dropped": (),
        "fault": (ctypes.c_char_p, Int),
        "launch": (ctypes.POINTER(Launch),),
        "stream": (),
        "reset": (),
        "reachable": (ctypes.c_char_p, ctypes.POINTER(Operand), Int),
        "device": (ctypes.POINTER(ctypes.c_char_p), *(ctypes.POINTER(Int),) * 2, *(ctypes.POINTER(Size),) * 2),
    }.items():
        function = getattr(library, f"fake_{name}")
        function.argtypes, function.restype = arguments, Int
    library.fake_stream.restype = Pointer
    library.fake_dropped.restype = Size
    return library


LIBRARY = _loaded()


def fault(function: str, algorithm: int = -1) -> int:
    """Return the fault that FAKE_FAULTS requests for this call of ``function``; 0 for no fault."""
    return LIBRARY.fake_fault(function.encode(), algorithm)
