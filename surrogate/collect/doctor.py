"""What of the measuring chain works on this machine, part by part, each with the remedy for what does not.

The device is asked what only it can tell (`Device.device_info`, one measurement). Where it does not open, its parts are
tried one by one in this process, so that the first that is missing is named.
"""

import ctypes
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Self

from surrogate.collect.counting import PERMISSION_REMEDY, Pair, count_pairs, find_tool
from surrogate.collect.cudnn.activity import Activity
from surrogate.collect.cudnn.gpu import DRIVERS
from surrogate.collect.cudnn.instruments import FIRST_WITHOUT_VOLTA, OLDER_CUDNN
from surrogate.collect.cudnn.library import Library
from surrogate.collect.device import POLICY, Device, DeviceInfo, DeviceLostError, Measurement, demangled, throttled
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu

OK, NOTE, FAILED = "ok", "note", "failed"
"""A part's status. What failed makes measurements untrustworthy; what is noted does not."""
PROBLEM = Conv(n=32, c=256, h=28, k=256, r=3, pad_h=1)
ALGORITHM = "IMPLICIT_PRECOMP_GEMM"
"""Timed once: 30 GFLOP, so that the GPU is at work when its clock is asked for."""
FMA_ERROR, WINOGRAD_ERROR = 1e-5, 1e-4
"""Relative errors that fp32 FMA stays below, which excludes TF32 (about 3e-4); Winograd's larger tiles lose digits."""
LOW_CLOCK = 0.6
"""A clock under load below this share of the highest is noted."""
MIN_DISK_BYTES = 1 << 30
COUNT_SECONDS = 60.0
REMEDIES: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NO_GPU_ERROR = 100
PARAMETERS, STATUS = Path("/proc/driver/nvidia/params"), Path("/proc/self/status")
SYS_ADMIN = 1 << 21


@dataclass(frozen=True, slots=True)
class Check:
    """One part: its name, its status, what was found, and the remedy."""

    name: str
    status: str
    value: str
    remedy: str = ""

    @classmethod
    def of(cls, name: str, wrong: object, value: str, remedy: str, status: str = FAILED) -> Self:
        """``status`` with its remedy where something is wrong, else ok without."""
        return cls(name, status, value, remedy) if wrong else cls(name, OK, value)


def examine(device: Device, folder: Path, *, quick: bool = False) -> list[Check]:
    """Every part in order; ``quick`` leaves out the profiler's trial run. ``folder`` is where a run would write.

    The device is closed where the profiler needs the GPU; it opens again at its next call.
    """
    checks = [driver()]
    try:
        info = device.device_info()
    except (InputError, DeviceLostError) as error:
        checks += _parts()
        known = any(str(error) == check.value for check in checks)
        checks.append(Check("device", FAILED, "does not open" if known else str(error), "mend what failed above first"))
    else:
        checks += [*_board(info), *_software(info), *_measured(device, info), *_sharing(info)]
        checks.append(_counters(device, info, quick))
    return [*checks, _disk(folder)]


def driver() -> Check:
    """NVIDIA's driver by its own library, which needs no other package."""
    for name in DRIVERS:
        with suppress(OSError):
            library = ctypes.CDLL(name)
            number = ctypes.c_int()
            code = library.cuInit(0)
            library.cuDriverGetVersion(ctypes.byref(number))
            speaks = f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}"
            if code:
                why = "sees no GPU" if code == NO_GPU_ERROR else f"does not start (CUDA error {code})"
                return Check("driver", FAILED, f"{speaks}, {why}", REMEDIES["driver"])
            return Check("driver", OK, speaks)
    return Check("driver", FAILED, f"{DRIVERS[0]} is not there", REMEDIES["driver"])


def wrong_arithmetic(errors: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """The algorithms whose fp32 FMA errs more than FMA can, or is not finite, each with its error."""
    limits = {name: WINOGRAD_ERROR if name.startswith("WINOGRAD") else FMA_ERROR for name in errors.get("fma", {})}
    return [f"{name} {error}" for name, error in errors.get("fma", {}).items() if not (error or 1.0) < limits[name]]


def _parts() -> Iterator[Check]:
    """The packages that the device is made of, each tried by itself."""
    held = find_spec("cupy")
    remedy = REMEDIES["packages"]
    yield Check.of("runtime", not held, "CuPy is installed" if held else "CuPy is not installed", remedy)
    try:
        library = Library.load()
        yield Check("cudnn", OK, f"{library.version} at {library.path}")
    except InputError as error:
        yield Check("cudnn", FAILED, str(error), remedy)
    activity, why = Activity.open(0)
    yield Check.of("cupti", not activity, why or "opens", remedy)
    if activity:
        activity.close()


def _board(info: DeviceInfo) -> Iterator[Check]:
    known = info.properties
    value = f"{info.gpu}, compute capability {known.get('compute_capability')}, {known.get('sms')} SMs"
    try:
        yield Check("gpu", OK, f"{value}; {gpu(info.gpu).name}")
    except InputError:
        yield Check("gpu", NOTE, f"{value}; not among `seer gpus`", REMEDIES["gpu"])


def _software(info: DeviceInfo) -> Iterator[Check]:
    known = info.properties
    versions = info.versions
    speaks = versions.get("cuda_driver", "?")
    yield Check("runtime", OK, f"CUDA {versions.get('cuda_runtime', '?')}, CuPy {versions.get('cupy', '?')}")
    numbers = [int(part) for part in info.library_version.split(".")]
    too_new = numbers >= FIRST_WITHOUT_VOLTA and float(known.get("compute_capability", 9.0)) < 7.5
    yield Check.of("cudnn", too_new, f"{info.library_version} at {known.get('library_path')}", OLDER_CUDNN)
    why = known.get("cupti_missing")
    if not why and (unlabelled := known.get("cupti_unlabelled")):
        value = f"opens, but labels no launch by the {' and the '.join(unlabelled)} API"
        yield Check("cupti", NOTE, value, REMEDIES["unlabelled"])
    else:
        yield Check.of("cupti", why, why or "opens", _cupti_remedy(speaks))


def _cupti_remedy(speaks: str) -> str:
    """The packages that fit a driver for CUDA ``speaks``: CUPTI may be older than it, not newer."""
    major, _, minor = speaks.partition(".")
    if major == "13" and minor.isdecimal():
        below = f"<13.{int(minor) + 1}"
        return f"pip install 'cupti-python>=13,{below}' 'nvidia-cuda-cupti{below}'; end other profilers"
    return "pip install 'cupti-python>=12.8,<13' (Linux, Python up to 3.12); end other profilers"


def _measured(device: Device, info: DeviceInfo) -> Iterator[Check]:
    """One convolution timed, and what that shows: kernels, names, arithmetic, the clock under load."""
    try:
        result = device.measure(PROBLEM, ALGORITHM, POLICY)
    except DeviceLostError as error:
        result = Measurement("failed", str(error))
    if result.status != "ok":
        yield Check("convolution", FAILED, f"{result.status}: {result.reason}", "run nvidia-smi; reboot or restart")
        return
    time_us = median(result.times_us)
    rate = f"{PROBLEM.flops / time_us / 1e6:.1f} TFLOP/s"
    yield Check("convolution", OK, f"{PROBLEM} by {ALGORITHM} in {time_us:.1f} µs by {result.timer}, {rate}")
    names = [demangled(kernel.kernel_name) for kernel in result.kernels]
    value = f"{len(names)} seen" if names else f"none ({result.reason or 'CUPTI is missing'})"
    yield Check.of("kernels", not names, value, "end other profilers, and see cupti above")
    if names:
        mangled = any(name.startswith("_Z") for name in names)
        yield Check.of("names", mangled, ", ".join(name[:60] for name in names), REMEDIES["names"], NOTE)
    wrong = wrong_arithmetic(info.properties.get("relative_errors", {}))
    value = f"FMA errs more than FMA can: {', '.join(wrong)}" if wrong else "fp32 FMA is FMA"
    yield Check.of("arithmetic", wrong, value, "unset NVIDIA_TF32_OVERRIDE")
    yield _clock(result, info.properties)


def _clock(result: Measurement, known: Mapping[str, Any]) -> Check:
    """The clock while the convolution ran."""
    clock, highest = result.sm_clock_mhz, known.get("max_sm_clock_mhz")
    if clock is None or not highest:
        return Check("clocks", NOTE, "NVML does not tell them", "pip install nvidia-ml-py")
    held = throttled(result.throttle_reasons)
    value = f"{clock:.0f} of {highest:.0f} MHz under load" + (", held down" if held else "")
    return Check.of("clocks", held or clock < LOW_CLOCK * highest, value, REMEDIES["clocks"], NOTE)


def _sharing(info: DeviceInfo) -> Iterator[Check]:
    """The board's state that changes times; a question that NVML does not answer has no line."""
    known = info.properties
    limit, default = known.get("power_limit_w"), known.get("default_power_limit_w")
    if limit and default:
        remedy = f"nvidia-smi -pl {default:.0f} as root, or say in the data that it was lowered"
        yield Check.of("power", limit < default, f"limit {limit:.0f} W, {default:.0f} W by default", remedy, NOTE)
    for name, status in (("ecc", OK), ("mig", NOTE), ("mps", FAILED)):
        if name in known:
            yield Check.of(name, known[name], "on" if known[name] else "off", REMEDIES[name], status)
    if "other_processes" in known:
        others = known["other_processes"]
        yield Check.of("processes", others, f"{others} others on this GPU", REMEDIES["processes"])


def _counters(device: Device, info: DeviceInfo, quick: bool) -> Check:
    """Whether a profiler may count: by the driver's settings, or by counting one convolution."""
    try:
        tool = find_tool(float(info.properties.get("compute_capability", 9.0)))
    except InputError as error:
        return Check("counters", NOTE, str(error), "times alone are measured")
    if quick:
        return Check.of("counters", counting_denied(), f"by {tool.path}, not tried", PERMISSION_REMEDY, NOTE)
    device.close()
    with TemporaryDirectory(prefix="seer-doctor-") as folder:
        counted = count_pairs([Pair(PROBLEM, ALGORITHM)], tool, Path(folder), seconds=COUNT_SECONDS)
    if len(counted.kernels):
        return Check("counters", OK, f"{len(counted.kernels)} kernels counted by {tool.path}")
    remedy = PERMISSION_REMEDY if not counted.permitted else "times alone are measured"
    return Check("counters", NOTE, f"{tool.path} counted nothing: {'; '.join(counted.notes)}", remedy)


def counting_denied(parameters: Path = PARAMETERS, status: Path = STATUS) -> bool:
    """True where the driver keeps hardware counters for administrators and this process has no such right.

    False where either is not told, as in many containers: only counting itself then shows.
    """
    try:
        if "RmProfilingAdminOnly: 1" not in parameters.read_text():
            return False
        rights = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("CapEff:")]
    except OSError:
        return False
    return bool(rights) and not any(int(right, 16) & SYS_ADMIN for right in rights)


def _disk(folder: Path) -> Check:
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(there).free
    return Check.of("disk", free < MIN_DISK_BYTES, f"{free / 1e9:.1f} GB free in {there}", "make room")
