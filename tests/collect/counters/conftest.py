"""Profilers that are none: programs that write what Nsight Compute and nvprof would, from a list of pairs."""

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from surrogate.collect.counters.pairs import Pair
from surrogate.features.conv import Conv

NCU = """
import json, os, sys
from pathlib import Path

words = sys.argv[1:]
settings = json.loads(Path(__file__).with_name("settings.json").read_text())
if os.environ.get("LC_ALL") != "C":
    sys.exit("the locale is not C")
if "--import" in words:
    assert words[words.index("--print-kernel-base") + 1] == "mangled"
    sys.stdout.write(Path(words[words.index("--import") + 1]).read_text())
    sys.exit(0)
if settings.get("denied"):
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters")
    sys.exit(1)
report = Path(words[words.index("--export") + 1])
metrics = words[words.index("--metrics") + 1].split(",")
group = report.stem[-1]
if group in settings.get("failing", []):
    sys.exit("==ERROR== something broke")
units = {"gpu__time_duration.sum": "usecond", "dram__bytes_read.sum": "Kbyte"}
values = {
    "gpu__time_duration.sum": "1,234.50", "dram__sectors_read.sum": "4,963", "dram__sectors_write.sum": "2,048",
    "dram__bytes_read.sum": "155.09", "smsp__sass_thread_inst_executed_op_fp32_pred_on.sum": "1,000,000",
    "smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active": "81.25",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "40.5", "launch__registers_per_thread": "128",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "23.75",
    "launch__occupancy_limit_blocks": "32", "launch__occupancy_limit_registers": "2",
    "launch__occupancy_limit_shared_mem": "4", "launch__occupancy_limit_warps": "8",
    "device__attribute_multiprocessor_count": "132",
}
names = [name for name in metrics if name in values]
header = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
          "Grid Size", "Device", "CC", *names]
rows = [header, [""] * 11 + [units.get(name, "%" if "pct" in name else "") for name in names]]
pairs = [line for line in Path(words[-1]).read_text().splitlines()]
launches = [("cold_start", 7, 128)]
for number, line in enumerate(pairs):
    if number in settings.get("missing", []):
        continue
    launches.append(("seer_marker", number + 1, 1))
    algorithm = json.loads(line)["algorithm"].lower()
    for kernel in range(settings["kernels"]):
        suffix = settings.get("renamed", {}).get(group, "")
        base = f"{algorithm}_{kernel}{suffix}"
        mangled = f"_Z{len(base)}{base}IfLi128EEvPfi"
        launches.append((mangled, 40 + kernel, 256))
for at, (name, grid, block) in enumerate(launches):
    rows.append([str(at), "17", "python", "host", name, "1", "7", f"({block}, 1, 1)", f"({grid}, 1, 1)", "0", "9.0",
                 *(values[name] for name in names)])
text = "==PROF== Connected to process 17\\n==PROF== Profiling: 0%....50%....100% - 1 pass\\n"
text += "\\n".join(",".join('"' + cell + '"' for cell in row) for row in rows) + "\\n"
report.write_text(text)
"""

NVPROF = """
import json, sys
from pathlib import Path

words = sys.argv[1:]
settings = json.loads(Path(__file__).with_name("settings.json").read_text())
log = Path(words[words.index("--log-file") + 1])
assert words[words.index("--demangling") + 1] == "off"
if settings.get("denied"):
    log.write_text("==9== NVPROF is profiling process 9\\n==9== Warning: ERR_NVGPUCTRPERM - The user does not have "
                   "permission to profile on the target device.\\n")
    sys.exit(0)
head = "==9== NVPROF is profiling process 9, command: x\\n==9== Profiling application: x\\n==9== Profiling result:\\n"
pairs = [json.loads(line) for line in Path(words[-1]).read_text().splitlines()]
launches = []
for number, pair in enumerate(pairs):
    launches += [("seer_marker", number + 1), (f"{pair['algorithm'].lower()}_sgemm", 33)]
if "--metrics" in words:
    names = words[words.index("--metrics") + 1].split(",")
    values = {"inst_fp_32": "5000", "dram_read_transactions": "600", "dram_write_transactions": "70",
              "single_precision_fu_utilization": "High (8)", "dram_utilization": "Low (3)",
              "achieved_occupancy": "0.5"}
    rows = ["Device,Context,Stream,Kernel,Correlation_ID," + ",".join(names)]
    rows += [f'"GPU (0)",1,7,"{name} [{at}]",{at},' + ",".join(f'"{values[n]}"' for n in names)
             for at, (name, _) in enumerate(launches)]
else:
    rows = ["Start,Duration,Grid X,Grid Y,Grid Z,Block X,Block Y,Block Z,Registers Per Thread,Static SMem,"
            "Dynamic SMem,Size,Throughput,SrcMemType,DstMemType,Device,Context,Stream,Name",
            "ms,us,,,,,,,,KB,B,MB,GB/s,,,,,,",
            '1.0,1.5,,,,,,,,,,0.1,2.0,Pageable,Device,"GPU (0)",1,7,"[CUDA memcpy HtoD]"']
    rows += [f'{2 + at},12.5,{grid},1,1,128,1,1,96,8,0,,,,,"GPU (0)",1,7,"{name} [{at}]"'
             for at, (name, grid) in enumerate(launches)]
log.write_text(head + "\\n".join(rows) + "\\n")
"""


@pytest.fixture
def pairs() -> list[Pair]:
    convs = [Conv(n=1 + i, c=16, h=28, k=32, r=3, pad_h=1) for i in range(3)]
    return [Pair(conv, algorithm) for conv in convs for algorithm in ("GEMM", "WINOGRAD")]


@pytest.fixture
def profiler(tmp_path: Path) -> Callable[..., str]:
    """The path of a program that behaves like ``name``, with settings for its behaviour."""

    def make(name: str, **settings: object) -> str:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        path = folder / name
        source = NCU if name == "ncu" else NVPROF
        path.write_text(f"#!{sys.executable}\n" + dedent(source))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        (folder / "settings.json").write_text(json.dumps({"kernels": 2, **settings}))
        return str(path)

    return make
