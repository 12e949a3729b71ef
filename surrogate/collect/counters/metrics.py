"""Which counters are asked for: Nsight Compute's in groups of one pass each, and nvprof's.

One pass per group means that no kernel is replayed, so nothing is saved and restored. Passes were counted for
compute capability 9.0. Never ask for ``sm__throughput``: alone it takes eight.
"""

LAUNCH = tuple(f"launch__{what}_dim_{axis}" for what in ("grid", "block") for axis in "xyz")
"""The launch's shape: known without a pass, and needed in every group (markers carry their number in it)."""
RESOURCES = (
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
    "launch__occupancy_limit_blocks",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "device__attribute_multiprocessor_count",
)
"""What B_max follows from; no pass either."""

GROUPS: dict[str, tuple[str, ...]] = {
    "A": (
        "gpu__time_duration.sum",
        "dram__bytes_read.sum",
        "dram__bytes_write.sum",
        "dram__sectors_read.sum",
        "dram__sectors_write.sum",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "lts__t_sectors_op_read.sum",
        "lts__t_sectors_op_write.sum",
        "sm__inst_executed_pipe_fma.sum",
        "sm__inst_executed_pipe_tensor.sum",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "sm__cycles_elapsed.max",
        *RESOURCES,
    ),
    "B": tuple(
        f"smsp__sass_thread_inst_executed_op_{kind}_pred_on.sum"
        for kind in ("ffma", "fadd", "fmul", "fp32", "fp16", "integer")
    ),
    "C": (
        "smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
    ),
}
"""Group → Nsight Compute's metrics; one run of the program each."""

NVPROF = (
    "inst_fp_32",
    "dram_read_transactions",
    "dram_write_transactions",
    "single_precision_fu_utilization",
    "dram_utilization",
    "achieved_occupancy",
)
"""nvprof's metrics: SEER's five, and the occupancy."""


def ncu_metrics(group: str) -> str:
    """The value of ``--metrics`` for one group."""
    return ",".join(dict.fromkeys((*GROUPS[group], *LAUNCH)))
