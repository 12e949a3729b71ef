"""Bind the fake CUDA runtime by ctypes; it shares memory, clock and launches with the fake libcudnn."""

import ctypes
import os
import tomllib
from pathlib import Path

Pointer, Size, Int = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
SOFT, MEMORY, ERROR, LATE = 4, 5, 7, 8
"""Values that `fault` returns, from fake.h."""
ABI = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NAMES = {int(number): names for number, names in ABI["errors"].items()}
TYPES = {"char*": ctypes.c_char_p, "void*": Pointer, "int": Int, "u32": ctypes.c_uint32, "u64": Size}
TYPES |= {"f64": ctypes.c_double, "u32[3]": ctypes.c_uint32 * 3, "char[160]": ctypes.c_char * 160}


def _type(name: str) -> type:
    return TYPES[name] if name in TYPES else ctypes.POINTER(_type(name.removesuffix("*")))


for _name, _fields in ABI["structures"].items():
    TYPES[_name] = type(_name, (ctypes.Structure,), {"_fields_": [(field, _type(kind)) for field, kind in _fields]})
Launch, Operand, Record = (TYPES[name] for name in ("Launch", "Operand", "Record"))


def _loaded() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["SEER_CUDNN"], mode=ctypes.RTLD_GLOBAL)
    for name, (result, *arguments) in ABI["functions"].items():
        function = getattr(library, f"fake_{name}")
        function.argtypes, function.restype = tuple(map(_type, arguments)), _type(result)
    return library


LIBRARY = _loaded()


def fault(function: str, algorithm: int = -1) -> int:
    """Return the fault that FAKE_FAULTS requests for this call of ``function``; 0 for no fault."""
    return LIBRARY.fake_fault(function.encode(), algorithm)
