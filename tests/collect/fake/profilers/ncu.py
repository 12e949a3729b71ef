"""A fake of Nsight Compute's ``ncu``: each call runs a program and writes a report, or prints a report as CSV.

Like ncu, it begins messages with ==, prints units in a second row, scales the units, separates thousands as the locale
says, and prints a kernel's name in one of three forms.
"""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

from profiled import CAPABILITY, DENIED, ORDER, Launch, launches, options, run

VALUED = {
    *("--target-processes", "--profile-from-start", "--replay-mode", "--cache-control", "--clock-control"),
    *("--metrics", "--export", "--import", "--page", "--print-kernel-base"),
}
PLAIN = {"--force-overwrite", "--csv", "--version"}
WAYS = ("op_read", "op_write") if CAPABILITY == "12.0" else ("read", "write")
"""The chip's names of DRAM reads and writes."""
SMS = {"9.0": 132, "7.0": 80, "12.0": 170}[CAPABILITY]


def values(launch: Launch) -> dict[str, tuple[str, float]]:
    """Return metric → (unit, value) of a launch, for the metrics of this chip."""
    sectors = launch.bytes / 64  # half the bytes each way, 32 a sector
    multiply_adds = launch.flops / 2
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    metrics = {
        "gpu__time_duration.sum": ("nsecond", launch.ns),
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", 40.5),
        "lts__t_sectors_op_read.sum": ("sector", sectors),
        "lts__t_sectors_op_write.sum": ("sector", sectors),
        "sm__inst_executed_pipe_fma.sum": ("inst", multiply_adds / 32),
        "sm__inst_executed_pipe_tensor.sum": ("inst", 0),
        "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", 23.75),
        "sm__cycles_elapsed.max": ("cycle", launch.ns * 1.98),
        "smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active": ("%", 81.25),
        "launch__registers_per_thread": ("register/thread", launch.registers),
        "launch__shared_mem_per_block_static": ("byte/block", launch.fixed),
        "launch__shared_mem_per_block_dynamic": ("byte/block", launch.dynamic),
        "launch__occupancy_limit_blocks": ("block", 32),
        "launch__occupancy_limit_registers": ("block", 65536 // (max(launch.registers, 1) * max(threads, 32))),
        "launch__occupancy_limit_shared_mem": ("block", 4),
        "launch__occupancy_limit_warps": ("block", 2048 // threads),
        "device__attribute_multiprocessor_count": ("", SMS),
    }
    for way in WAYS:
        metrics[f"dram__bytes_{way}.sum"] = ("byte", launch.bytes / 2)
        metrics[f"dram__sectors_{way}.sum"] = ("sector", sectors)
    for kind in ("ffma", "fadd", "fmul", "fp32", "fp16", "integer"):
        counted = multiply_adds if kind in ("ffma", "fp32") else 0
        metrics[f"smsp__sass_thread_inst_executed_op_{kind}_pred_on.sum"] = ("inst", counted)
    for what, shape in (("grid", launch.grid), ("block", launch.block)):
        metrics |= {f"launch__{what}_dim_{axis}": ("", size) for axis, size in zip("xyz", shape, strict=True)}
    return metrics


def name_of(mangled: str, base: str) -> str:
    """Return the name in the form of --print-kernel-base; ncu prints the types of integer template arguments."""
    if base == "mangled" or not mangled.startswith("_Z"):
        return mangled
    demangled = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.strip()
    if base == "demangled":
        return re.sub(r"(?<=[<, ])(\d+)(?=[,>])", r"(int)\1", demangled)
    return demangled.partition("<")[0].partition("(")[0].split(" ")[-1].split("::")[-1]


def scaled(unit: str, columns: list[float]) -> tuple[str, float]:
    """Return the printed unit of a column and its divisor, which depend on the largest value."""
    largest = max(columns, default=0.0)
    if unit == "nsecond":
        return ("msecond", 1e6) if largest >= 1e6 else ("usecond", 1e3) if largest >= 1e3 else (unit, 1.0)
    if unit == "byte":
        return ("Mbyte", 1e6) if largest >= 1e6 else ("Kbyte", 1e3) if largest >= 1e3 else (unit, 1.0)
    return unit, 1.0


def printed(value: float) -> str:
    """Format a number with the separators of the locale."""
    text = str(int(value)) if float(value).is_integer() else f"{value:.6f}"
    digits, point, rest = text.partition(".")
    return text if os.environ.get("LC_ALL") == "C" else f"{int(digits):,}{point}{rest}"


def page(report: Path, base: str) -> None:
    """Print the raw page of a report."""
    metrics = report.read_text(encoding="utf-8").split(",")
    kernels = [launch for launch in launches(report.with_suffix(".launches")) if launch.kind == "kernel"]
    if not kernels:
        print("==WARNING== No kernels were profiled.")
        return
    rows = [values(launch) for launch in kernels]
    units = {name: scaled(rows[0][name][0], [row[name][1] for row in rows]) for name in metrics}
    writer = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL, lineterminator="\n")
    head = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"]
    head += ["Block Size", "Grid Size", "Device", "CC"]
    writer.writerow((*head, *metrics))
    writer.writerow((*[""] * len(head), *(units[name][0] for name in metrics)))
    for number, (launch, row) in enumerate(zip(kernels, rows, strict=True)):
        facts = (number, 17, "python3.12", "127.0.0.1", name_of(launch.name, base), 1, 7, launch.block, launch.grid, 0)
        writer.writerow((*facts, CAPABILITY, *(printed(row[name][1] / units[name][1]) for name in metrics)))


def main() -> int:
    """Profile a program, print a report, or print the version."""
    found, program = options(sys.argv[1:], VALUED, PLAIN)
    if "--version" in found:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.2.1.0 (build 35987062)")
        return 0
    if "--import" in found:
        page(Path(found["--import"]), found.get("--print-kernel-base", "demangled"))
        return 0
    metrics, report = found["--metrics"].split(","), Path(found.get("--export", "report.ncu-rep"))
    missing = [name for name in metrics if name not in values(Launch("", "", (1,) * 3, (1,) * 3, 1, 0, 0, 1, 1, 1))]
    if missing:
        print(f"==ERROR== Failed to find metric {missing[0]}")
        return 1
    status = run(program, report.with_suffix(".launches"), found.get("--profile-from-start") != "off")
    print(f"==PROF== Connected to process 17 ({program[0]})")
    if ORDER == "denied":
        print(f"==ERROR== {DENIED}")
        return 1
    report.write_text(",".join(metrics), encoding="utf-8")
    print("==PROF== Disconnected from process 17")
    return status


if __name__ == "__main__":
    sys.exit(main())
