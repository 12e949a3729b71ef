"""A stand-in for ``nvprof``: a program's launches, or its metrics, as CSV in a log file.

As the real one does: ==pid== lines in front, a row of units below the trace's header, memory operations in brackets and
without a grid, kernel names that end in `` [id]``, metrics without grids and with words such as ``Low (3)``.
"""

import csv
import subprocess
import sys
from pathlib import Path

from profiled import DENIED, ORDER, Launch, launches, options, run

TRACE = (
    "Start",
    "Duration",
    "Grid X",
    "Grid Y",
    "Grid Z",
    "Block X",
    "Block Y",
    "Block Z",
    "Registers Per Thread",
    "Static SMem",
    "Dynamic SMem",
    "Size",
    "Throughput",
    "SrcMemType",
    "DstMemType",
    "Device",
    "Context",
    "Stream",
    "Name",
)
UNITS = ("ms", "us", *[""] * 7, "KB", "B", "KB", "GB/s", *[""] * 6)
DEVICE = ("Tesla V100-SXM2-16GB (0)", 1, 7)


def metric(name: str, launch: Launch) -> str:
    """A metric as nvprof prints it."""
    known = {
        "inst_fp_32": f"{launch.flops / 2:.0f}",
        "dram_read_transactions": f"{launch.bytes / 64:.0f}",
        "dram_write_transactions": f"{launch.bytes / 64:.0f}",
        "single_precision_fu_utilization": "High (8)",
        "dram_utilization": "Low (3)",
        "achieved_occupancy": "0.500000",
    }
    return known[name]


def row(number: int, launch: Launch, name: str) -> tuple[object, ...]:
    """One launch of the trace."""
    start, us = 100 + number, launch.ns / 1e3
    if launch.kind != "kernel":
        return (start, us, *[""] * 9, "0.5", "10.0", "", "Device", *DEVICE, name)
    shape = (*launch.grid, *launch.block, launch.registers)
    return (start, us, *shape, f"{launch.fixed / 1024:.5g}", launch.dynamic, *[""] * 4, *DEVICE, f"{name} [{number}]")


def main() -> int:
    """Profile a program."""
    valued = {"--profile-from-start", "--demangling", "--metrics", "--log-file"}
    found, program = options(sys.argv[1:], valued, {"--print-gpu-trace", "--csv", "--version"})
    if "--version" in found:
        print("nvprof: NVIDIA (R) Cuda command line profiler\nRelease version 11.8.87 (21)")
        return 0
    log = Path(found["--log-file"])
    status = run(program, log.with_suffix(".launches"), found.get("--profile-from-start") != "off")
    lines = [f"==17== NVPROF is profiling process 17, command: {program[0]}"]
    lines.append(f"==17== Profiling application: {program[0]}")
    if ORDER == "denied":
        log.write_text("\n".join([lines[0], f"==17== Warning: {DENIED}"]) + "\n", encoding="utf-8")
        return status
    held = launches(log.with_suffix(".launches"))
    names = {launch.name for launch in held}
    if found.get("--demangling") != "off":
        text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
        plain = dict(zip(names, text.splitlines(), strict=True))
    else:
        plain = {name: name for name in names}
    with log.open("w", encoding="utf-8") as file:
        file.write("\n".join([*lines, "==17== Profiling result:"]) + "\n")
        writer = csv.writer(file, lineterminator="\n")
        if "--metrics" in found:
            metrics = found["--metrics"].split(",")
            writer.writerow(("Device", "Context", "Stream", "Kernel", "Correlation_ID", *metrics))
            for number, launch in enumerate(held):
                if launch.kind == "kernel":
                    cells = (metric(name, launch) for name in metrics)
                    writer.writerow((*DEVICE, f"{plain[launch.name]} [{number}]", number, *cells))
        else:
            writer.writerows((TRACE, UNITS, *(row(at, launch, plain[launch.name]) for at, launch in enumerate(held))))
    return status


if __name__ == "__main__":
    sys.exit(main())
