"""Check each part of the measuring chain on this machine, and state a remedy for each fault.

If the device opens, its `Device.device_info` and one measurement are checked. If it refuses, its parts are tried one by
one in this process, so that the first missing part is reported.
"""

import ctypes
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Self

from surrogate.collect.counting import Pair, count_pairs, find_tool
from surrogate.collect.cudnn.activity import LEFT_OUT, Activity
from surrogate.collect.cudnn.instruments import FIRST_WITHOUT_VOLTA, OLDER_CUDNN
from surrogate.collect.cudnn.library import Library
from surrogate.collect.device import POLICY, Device, DeviceInfo, DeviceLostError, Measurement, demangled, throttled
from surrogate.features import CUDNN_GRAPH, Conv, InputError, UnknownGpuError, read_toml
from surrogate.features.gpu import gpu
from surrogate.formats.launches import PERMISSION_REMEDY

DRIVERS = ("libcuda.so.1", "nvcuda.dll")
"""Names of the driver's own library on the supported systems."""
OK, NOTE, FAILED = "ok", "note", "failed"
"""A part's status. If a part failed, measurements cannot be trusted; a note has no such effect."""
PROBLEM = Conv(n=32, c=256, h=28, k=256, r=3, pad_h=1)
ALGORITHM = "IMPLICIT_PRECOMP_GEMM"
"""The timed convolution has 30 GFLOP, so the GPU is busy when its clock is read."""
LOW_CLOCK = 0.6
"""A clock under load below this share of the highest clock gets a note."""
MIN_DISK_BYTES = 1 << 30
COUNT_SECONDS = 60.0
REMEDIES: dict[str, str] = read_toml(__file__)
NO_GPU_ERROR = 100
PARAMETERS, STATUS = Path("/proc/driver/nvidia/params"), Path("/proc/self/status")
SYS_ADMIN = 1 << 21


@dataclass(frozen=True, slots=True)
class Check:
    """The check of one part: its name, its status, the finding, and the remedy."""

    name: str
    status: str
    value: str
    remedy: str = ""

    @classmethod
    def of(cls, name: str, wrong: object, value: str, remedy: str, status: str = FAILED) -> Self:
        """Return a check with ``status`` and ``remedy`` if ``wrong`` is true, else an ok check without a remedy."""
        return cls(name, status, value, remedy) if wrong else cls(name, OK, value)


def examine(device: Device, folder: Path, *, quick: bool = False) -> list[Check]:
    """Return the checks of all parts in order.

    ``quick`` leaves out the profiler's trial run. ``folder`` is the folder of the planned run. The device is closed
    when the profiler needs the GPU, and opens again at its next call.
    """
    checks = [driver()]
    try:
        info = device.device_info()
    except (InputError, DeviceLostError) as error:
        # What ended another process may end this one, too.
        checks += _parts() if isinstance(error, InputError) else ()
        is_reported = any(str(error) == check.value for check in checks)
        value = "does not open" if is_reported else str(error)
        checks.append(Check("device", FAILED, value, "first mend the failed checks above"))
    else:
        checks += [*_board(info), *_software(info), *_measured(device, info), *_board_settings(info)]
        checks.append(_counters(device, info, quick))
    return [*checks, _disk(folder)]


def driver() -> Check:
    """Return the check of NVIDIA's driver, by the driver's own library, without any package."""
    for name in DRIVERS:
        with suppress(OSError):
            library = ctypes.CDLL(name)
            number = ctypes.c_int()
            code = library.cuInit(0)
            library.cuDriverGetVersion(ctypes.byref(number))
            version = f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}"
            if code:
                why = "sees no GPU" if code == NO_GPU_ERROR else f"does not start (CUDA error {code})"
                return Check("driver", FAILED, f"{version}, {why}", REMEDIES["driver"])
            return Check("driver", OK, version)
    return Check("driver", FAILED, f"{DRIVERS[0]} is not installed", REMEDIES["driver"])


def _parts() -> Iterator[Check]:
    """Yield a check of each package that the device needs."""
    is_installed = find_spec("cupy")
    remedy = REMEDIES["packages"]
    value = "CuPy is installed" if is_installed else "CuPy is not installed"
    yield Check.of("runtime", not is_installed, value, remedy)
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
    properties = info.properties
    value = f"{info.gpu}, compute capability {properties.get('compute_capability')}, {properties.get('sms')} SMs"
    try:
        yield Check("gpu", OK, f"{value}; {gpu(info.gpu).name}")
    except UnknownGpuError:
        yield Check("gpu", NOTE, f"{value}; not among `seer gpus`", REMEDIES["gpu"])


def _software(info: DeviceInfo) -> Iterator[Check]:
    driver_cuda = info.versions.get("cuda_driver", "?")
    yield Check("runtime", OK, f"CUDA {info.versions.get('cuda_runtime', '?')}, CuPy {info.versions.get('cupy', '?')}")
    numbers = [int(part) for part in info.library_version.split(".")]
    too_new = numbers >= FIRST_WITHOUT_VOLTA and float(info.properties.get("compute_capability", 9.0)) < 7.5
    yield Check.of("cudnn", too_new, f"{info.library_version} at {info.properties.get('library_path')}", OLDER_CUDNN)
    why = info.properties.get("cupti_missing")
    remedy = REMEDIES["without_cupti"] if why in LEFT_OUT.values() else _cupti_remedy(driver_cuda)
    yield Check.of("cupti", why, why or "opens", remedy)


def _cupti_remedy(driver_cuda: str) -> str:
    """Return the packages for a driver of CUDA ``driver_cuda``: CUPTI may be older than the driver, but not newer."""
    major, _, minor = driver_cuda.partition(".")
    if major == "13" and minor.isdecimal():
        below = f"<13.{int(minor) + 1}"
        return f"pip install 'cupti-python>=13,{below}' 'nvidia-cuda-cupti{below}'; end other profilers"
    return "pip install 'cupti-python>=12.8,<13' (Linux, Python up to 3.12); end other profilers"


def _measured(device: Device, info: DeviceInfo) -> Iterator[Check]:
    """Time one convolution, and yield its checks: kernels, names, arithmetic, the clock under load."""
    algorithm = ALGORITHM
    try:
        if info.library == CUDNN_GRAPH:
            algorithm = next(iter(device.candidates(PROBLEM)), "no configuration")
        result = device.measure(PROBLEM, algorithm, POLICY)
    except DeviceLostError as error:
        result = Measurement("failed", str(error))
    if result.status != "ok":
        yield Check("convolution", FAILED, f"{result.status}: {result.reason}", "run nvidia-smi; reboot or restart")
        return
    time_us = median(result.times_us)
    rate = f"{PROBLEM.flops / time_us / 1e6:.1f} TFLOP/s"
    yield Check("convolution", OK, f"{PROBLEM} by {algorithm} in {time_us:.1f} µs by {result.timer}, {rate}")
    names = [demangled(kernel.kernel_name) for kernel in result.kernels]
    value = f"{len(names)} recorded" if names else f"none ({result.reason or 'CUPTI is missing'})"
    yield Check.of("kernels", not names, value, "end other profilers, and see cupti above")
    if names:
        mangled = any(name.startswith("_Z") for name in names)
        yield Check.of("names", mangled, ", ".join(name[:60] for name in names), REMEDIES["names"], NOTE)
    if errors := info.properties.get("relative_errors", {}).get("fma"):
        yield _arithmetic(info, errors)
    yield _clock(result, info.properties)


def _arithmetic(info: DeviceInfo, errors: Mapping[str, float | None]) -> Check:
    """Return the check of fp32 FMA. It fails if no algorithm is exact; single inexact ones are only left out."""
    inexact = info.inexact_algorithms(PROBLEM)
    wrong = ", ".join(f"{name} {errors[name]}" for name in inexact)
    value = f"left out, too inexact for FMA: {wrong}" if wrong else "math fma in fp32 runs on FMA units"
    status = FAILED if len(inexact) == len(errors) else NOTE
    return Check.of("arithmetic", wrong, value, "unset NVIDIA_TF32_OVERRIDE", status)


def _clock(result: Measurement, properties: Mapping[str, Any]) -> Check:
    """Return the check of the clock while the convolution ran."""
    clock, highest = result.sm_clock_mhz, properties.get("max_sm_clock_mhz")
    if clock is None or not highest:
        return Check("clocks", NOTE, "NVML does not report them", "pip install nvidia-ml-py")
    is_throttled = throttled(result.throttle_reasons)
    value = f"{clock:.0f} of {highest:.0f} MHz under load" + (", throttled" if is_throttled else "")
    return Check.of("clocks", is_throttled or clock < LOW_CLOCK * highest, value, REMEDIES["clocks"], NOTE)


def _board_settings(info: DeviceInfo) -> Iterator[Check]:
    """Yield checks of the board's settings that change times; a setting that NVML does not report has no check."""
    properties = info.properties
    limit, default = properties.get("power_limit_w"), properties.get("default_power_limit_w")
    if limit and default:
        remedy = f"nvidia-smi -pl {default:.0f} as root, or state in the data that it was lowered"
        yield Check.of("power", limit < default, f"limit {limit:.0f} W, {default:.0f} W by default", remedy, NOTE)
    for name, status in (("ecc", OK), ("mig", NOTE), ("mps", FAILED)):
        if name in properties:
            yield Check.of(name, properties[name], "on" if properties[name] else "off", REMEDIES[name], status)
    if "other_processes" in properties:
        others = properties["other_processes"]
        yield Check.of("processes", others, f"{others} others on this GPU", REMEDIES["processes"])


def _counters(device: Device, info: DeviceInfo, quick: bool) -> Check:
    """Return the check of the profiler's permission, by the driver's settings or by counting one convolution."""
    try:
        tool = find_tool(float(info.properties.get("compute_capability", 9.0)))
    except InputError as error:
        return Check("counters", NOTE, str(error), "only times are measured")
    if quick:
        return Check.of("counters", counting_denied(), f"by {tool.path}, not tried", PERMISSION_REMEDY, NOTE)
    device.close()
    with TemporaryDirectory(prefix="seer-doctor-") as folder:
        counted = count_pairs([Pair(PROBLEM, ALGORITHM)], tool, Path(folder), seconds=COUNT_SECONDS)
    if len(counted.kernels):
        return Check("counters", OK, f"{len(counted.kernels)} kernels counted by {tool.path}")
    remedy = PERMISSION_REMEDY if not counted.permitted else "only times are measured"
    return Check("counters", NOTE, f"{tool.path} counted nothing: {'; '.join(counted.notes)}", remedy)


def counting_denied(parameters: Path = PARAMETERS, status: Path = STATUS) -> bool:
    """Return True if the driver permits hardware counters only to administrators, and this process has no such right.

    Return False if one of the two is unknown, as in many containers. Then only a trial shows whether counting is
    permitted.
    """
    try:
        if "RmProfilingAdminOnly: 1" not in parameters.read_text():
            return False
        rights = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("CapEff:")]
    except OSError:
        return False
    return bool(rights) and not any(int(right, 16) & SYS_ADMIN for right in rights)


def _disk(folder: Path) -> Check:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(existing).free
    return Check.of("disk", free < MIN_DISK_BYTES, f"{free / 1e9:.1f} GB free in {existing}", "free some space")
