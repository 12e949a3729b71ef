"""Every column of every table that this package writes: its name, type, unit and meaning, declared once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from surrogate.features.errors import InputError, nearest
from surrogate.features.families import CONV, FAMILIES

SCHEMA_VERSION = 1
"""Version of the parquet layout. History: 1, the first."""
STATUSES = ("ok", "not_supported", "workspace_too_large", "failed")
CANDIDATES = ("all", "listed")
"""``all``: every algorithm was tried, a missing row is unmeasured. ``listed``: a censored list, such as MIOpen's."""
LAYOUT_ALIASES = {"NCHW-NCHW-NCHW": "NCHW", "NHWC-NHWC-NHWC": "NHWC"}
"""MIOpen's spelling of a layout shared by input, filter and output."""
FAMILY_COLUMN = "family"

TABLES = {
    "dataset": "DATA.parquet: one row per (GPU, library, version, setting, problem, algorithm[, solver])",
    "kernels": "DATA.kernels.parquet, beside a dataset: one row per kernel of a dataset row",
    "predictions": "what `seer predict --data` adds to the rows of a table",
    "time_rows": "results.json of `seer compare`: errors of predicted times, one row per model and slice",
    "choice_rows": "results.json of `seer compare`: slowdowns of the picks, one row per model and slice",
    "held_out": "predictions.parquet of `seer compare`: a row per model, seed and dataset row",
    "choices": "choices.parquet of `seer compare`: a row per model, seed and judged problem",
    "folds": "folds.csv of `seer compare`: a row per seed and held-out shape",
}
"""Table → the file that holds it."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``kind`` is text, int64, float64 or boolean; ``unit`` is empty where there is none."""

    table: str
    name: str
    kind: str
    unit: str
    required: bool
    meaning: str


def columns(table: str | None = None) -> tuple[Column, ...]:
    """The columns of ``table`` (all tables: None) in their order. Raises `InputError` for an unknown table."""
    if table is not None and table not in TABLES:
        raise InputError(f"table {table!r} is unknown; known: {', '.join(TABLES)}{nearest(table, TABLES)}")
    return tuple(column for column in COLUMNS if table in (None, column.table))


def names(table: str, *, required: bool | None = None) -> tuple[str, ...]:
    """Names of the table's columns, of those that are (or are not) ``required`` only."""
    return tuple(column.name for column in columns(table) if required in (None, column.required))


def _declared(table: str, required: bool, *rows: tuple[str, str, str, str]) -> Iterator[Column]:
    """Columns from (name, kind, unit, meaning)."""
    for name, kind, unit, meaning in rows:
        yield Column(table, name, kind, unit, required, meaning)


def _taken(
    table: str, source: Sequence[Column], wanted: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[Column]:
    """Columns of another table under the same name; ``optional``: those that need not be there."""
    by_name = {column.name: column for column in source}
    for name in wanted:
        yield replace(by_name[name], table=table, required=name not in optional)


_SETTINGS = (
    (FAMILY_COLUMN, "text", "", "kind of kernel; a table without the column holds convolutions (conv)"),
    ("gpu", "text", "", "the GPU's name; `seer gpus` lists those known, with their aliases"),
    ("library", "text", "", "what ran the algorithm: cudnn, cudnn-graph, miopen, cublas, torch, …"),
    ("library_version", "text", "", "its version, as in 7.6.4"),
    ("operator", "text", "", "which operator of the family, as softmax; families but conv"),
    ("direction", "text", "", "fwd, bwd_data (input's gradient) or bwd_filter (filter's); family conv"),
    ("dtype", "text", "", "element type of the arithmetic: fp32, fp16, bf16, fp8, fp8_block, nvfp4, int8_wo, …"),
    ("math", "text", "", "arithmetic allowed: fma, default, tensor_op or tensor_op_allow_conversion"),
    ("layout", "text", "", "order of the dimensions: NCHW or NHWC; family conv"),
    ("variant", "text", "", "the library's mode of an operator, as SPATIAL_PERSISTENT; families but conv"),
    ("phase", "text", "", "context (a prompt), generation (tokens after a cache) or encoder; attention, mla"),
    ("kv_dtype", "text", "", "element type of the cached keys and values: bf16, fp16, fp8 or fp32; attention, mla"),
    ("routing", "text", "", "how tokens spread over experts: balanced, or power_law_1.2; moe"),
)  # fmt: skip
SETTING_COLUMNS = tuple(name for name, *_ in _SETTINGS)
"""Text columns that, with a problem, say what was measured where."""


def _sizes() -> Iterator[tuple[str, str, str, str]]:
    """Every size of every family once: name, kind, unit, meaning with the families that have it."""
    by_name = {}
    for family in FAMILIES.values():
        for size in family.sizes:
            by_name.setdefault(size.name, (size, []))[1].append(family.name)
    for name, (size, families) in by_name.items():
        yield name, "int64", size.unit, f"{size.meaning}; {', '.join(families)}"


SIZE_COLUMNS = tuple(name for name, *_ in _sizes())
"""Sizes of all families; 0 where a row's family lacks one."""

_DATASET = (
    *_declared("dataset", True, *_SETTINGS),
    *_declared("dataset", True, *_sizes()),
    *_declared(
        "dataset", True,
        ("algorithm", "text", "", "the library's algorithm, as IMPLICIT_PRECOMP_GEMM; default where there is one only"),
        ("status", "text", "", "ok, not_supported, workspace_too_large or failed"),
        ("time_us", "float64", "µs", "median time of one call; needed where status is ok"),
    ),
    *_declared(
        "dataset", False,
        ("solver", "text", "", "MIOpen's implementation of the algorithm; joins the key"),
        ("time_us_min", "float64", "µs", "the fastest repeat"),
        ("time_us_max", "float64", "µs", "the slowest repeat"),
        ("time_us_mad", "float64", "µs", "median absolute deviation of the repeats, unscaled"),
        ("span_us", "float64", "µs", "first kernel's start to the last one's end, launch gaps included"),
        ("repeats", "int64", "", "timed calls behind the row"),
        ("stable", "boolean", "", "the repeats agree: deviation and slowest repeat lie within the protocol's limits"),
        ("timer", "text", "", "instrument: cupti, events or wall"),
        ("workspace_bytes", "float64", "bytes", "buffer that the algorithm needs beyond its tensors"),
        ("find_time_us", "float64", "µs", "the library's own one-shot timing (cudnnFind…Ex)"),
        ("heuristic_algorithm", "text", "", "what the library's heuristic picks for the problem"),
        ("heuristic_solver", "text", "", "the solver that it picks"),
        ("heuristic_rank", "int64", "", "place in the heuristic's ranking, from 1 (--heuristic-only)"),
        ("deterministic", "boolean", "", "equal results at every call"),
        ("sm_clock_mhz", "float64", "MHz", "clock of the SMs, sampled after the problem"),
        ("slow_clock", "boolean", "", "the clock was below 95 % of the run's median"),
        ("throttled", "boolean", "", "the driver told of a power or thermal limit"),
        ("networks", "text", "", "networks that have the problem, comma-separated"),
        ("origin", "text", "", "where the problem or the row came from"),
        ("reason", "text", "", "why the status is not ok, or the time not CUPTI's"),
        ("seer_part", "text", "", "train or test, as SEER's workbooks split"),
        ("out_h", "int64", "pixels", "height of the output, as MIOpen's key states it"),
        ("out_w", "int64", "pixels", "width of the output, as MIOpen's key states it"),
        ("bias", "int64", "", "MIOpen's bias field of the key"),
        ("casts", "text", "", "MIOpen's type conversions of the key"),
        ("backend", "text", "", "MIOpen's backend: HIP or OpenCL"),
        ("fdb_version", "int64", "", "version of MIOpen's find-db"),
        ("num_cu", "int64", "", "compute units of the GPU that the find-db is for"),
    ),
)  # fmt: skip
ROW_KEY = CONV.row_key
"""Columns whose values name one row of a table of convolutions; other families have their own (`Family.row_key`)."""

_KERNELS = (
    *_taken("kernels", _DATASET, ROW_KEY),
    *_declared(
        "kernels", True,
        ("kernel_index", "int64", "", "place among the row's kernels in launch order, from 0"),
        ("kernel_name", "text", "", "the kernel's name as the profiler prints it"),
    ),
    *_declared(
        "kernels", False,
        ("grid_x", "float64", "blocks", "grid, x"),
        ("grid_y", "float64", "blocks", "grid, y"),
        ("grid_z", "float64", "blocks", "grid, z"),
        ("block_x", "float64", "threads", "block, x"),
        ("block_y", "float64", "threads", "block, y"),
        ("block_z", "float64", "threads", "block, z"),
        ("registers_per_thread", "float64", "registers", "32-bit registers of a thread"),
        ("static_shared_bytes", "float64", "bytes", "shared memory of a block, fixed by the kernel"),
        ("dynamic_shared_bytes", "float64", "bytes", "shared memory of a block, asked for at launch"),
        ("time_us", "float64", "µs", "median time of the kernel"),
        ("blocks", "float64", "blocks", "blocks of the launch"),
        ("b_max", "float64", "blocks", "blocks that the whole GPU holds at once"),
        ("waves", "float64", "", "⌈blocks / b_max⌉"),
        ("fp32_instructions", "float64", "thread instructions", "fp32 instructions executed, predicated on"),
        ("dram_read_transactions", "float64", "sectors of 32 bytes", "read from DRAM"),
        ("dram_write_transactions", "float64", "sectors of 32 bytes", "written to DRAM"),
        ("fp32_utilization_pct", "float64", "%", "of the fp32 pipe's peak"),
        ("dram_utilization_pct", "float64", "%", "of the DRAM's peak"),
        ("achieved_occupancy_pct", "float64", "%", "resident warps of the greatest number"),
        ("l2_read_sectors", "float64", "sectors of 32 bytes", "read from the L2 cache"),
        ("l2_write_sectors", "float64", "sectors of 32 bytes", "written to the L2 cache"),
        ("fma_pipe_instructions", "float64", "warp instructions", "executed by the FMA pipe"),
        ("tensor_pipe_instructions", "float64", "warp instructions", "executed by the tensor pipe"),
        ("sm_cycles", "float64", "cycles", "of the SM that was busy longest"),
        ("ffma_instructions", "float64", "thread instructions", "fp32 multiply-adds executed"),
        ("fadd_instructions", "float64", "thread instructions", "fp32 additions executed"),
        ("fmul_instructions", "float64", "thread instructions", "fp32 multiplications executed"),
        ("fp16_instructions", "float64", "thread instructions", "fp16 instructions executed"),
        ("integer_instructions", "float64", "thread instructions", "integer instructions executed"),
        ("counted_time_us", "float64", "µs", "time of the kernel under the profiler that counted"),
    ),
)  # fmt: skip

_PREDICTIONS = tuple(
    _declared(
        "predictions", True,
        ("predicted_us", "float64", "µs", "predicted time of one call"),
        ("lower_us", "float64", "µs", "lower end of the 90 % interval"),
        ("upper_us", "float64", "µs", "upper end of the 90 % interval"),
        ("in_domain", "boolean", "", "sizes, GPU and setting lie within what training saw"),
        ("supported", "boolean", "", "the algorithm is expected to run the problem"),
    )
)  # fmt: skip

_SLICE = (
    ("model", "text", "", "predictor or picker; oracle and cudnn-heuristic stand among them"),
    ("split", "text", "", "what was held out: shape, network, gpu or random rows"),
    (FAMILY_COLUMN, "text", "", "kind of kernel"),
    ("stratum", "text", "", "kind of problems: all, or one of the family's (conv: ungrouped, 1x1s1, …)"),
    ("gpu", "text", "", "GPU, or all"),
    ("direction", "text", "", "direction, all where several"),
    ("dtype", "text", "", "element type, all where several"),
    ("math", "text", "", "arithmetic, all where several"),
    ("n", "int64", "", "rows or problems judged; 0: see reason"),
    ("shapes", "int64", "", "distinct shapes among them"),
)
_REASON = ("reason", "text", "", "why nothing was judged, where n is 0")
_RESULTS = (
    *_declared("time_rows", True, *_SLICE),
    *_declared(
        "time_rows", True,
        ("algorithm", "text", "", "algorithm, or all"),
        ("population", "text", "", "all rows, within-2x of the problem's best, or best"),
    ),
    *_declared(
        "time_rows", False,
        ("median_ape", "float64", "fraction", "median of |predicted / measured − 1|"),
        ("mape", "float64", "fraction", "mean of it"),
        ("p90_ape", "float64", "fraction", "90th percentile of it"),
        ("rmspe", "float64", "fraction", "root mean square of it"),
        ("gmae", "float64", "fraction", "geometric mean of it"),
        ("spearman", "float64", "", "rank correlation of predicted and measured times"),
        _REASON,
    ),
    *_declared("choice_rows", True, *_SLICE),
    *_declared(
        "choice_rows", False,
        ("slowdown_macro", "float64", "ratio", "time of the pick / of the best: geometric mean, every shape alike"),
        ("ci_low", "float64", "ratio", "lower end of its 95 % interval, by bootstrap over shapes"),
        ("ci_high", "float64", "ratio", "upper end"),
        ("slowdown_geomean", "float64", "ratio", "the same pooled: every problem alike"),
        ("slowdown_geomean_ci", "float64", "ratio", "its 95 % interval: [low, high]"),
        ("slowdown_p95", "float64", "ratio", "95th percentile"),
        ("slowdown_max", "float64", "ratio", "the worst pick"),
        ("top1", "float64", "fraction", "picks that are the best"),
        ("within_10pct", "float64", "fraction", "picks within 10 % of the best"),
        ("top2_slowdown", "float64", "ratio", "geometric mean where the better of the first two is taken"),
        ("infeasible_picks", "int64", "", "picks that did not run; charged as the slowest"),
        ("paired_vs_heuristic", "float64", "log ratio", "log slowdown minus the heuristic's: [low, mid, high]"),
        ("paired_pooled_vs_heuristic", "float64", "log ratio", "the same, pooled"),
        _REASON,
    ),
)  # fmt: skip

_FOLD = (
    ("seed", "int64", "", "number of the round of folds"),
    ("fold", "text", "", "name of the fold that held the row out"),
)
_JUDGED = (
    *_declared("held_out", True, ("model", "text", "", "predictor"), *_FOLD),
    *_taken("held_out", _DATASET, (*ROW_KEY, "solver", "status", "time_us"), optional=("solver",)),
    *_declared("held_out", False, ("mechanism", "text", "", "how the algorithm works")),
    *_taken("held_out", _PREDICTIONS, ("predicted_us", "supported")),
    *_declared("choices", True, ("model", "text", "", "picker"), _FOLD[0]),
    *_taken("choices", _DATASET, (*CONV.problem_key, "networks"), optional=("networks",)),
    *_declared(
        "choices", True,
        ("stratum", "text", "", "kind of the problem"),
        ("best", "text", "", "the fastest algorithm (or solver)"),
        ("picked", "text", "", "the pick; empty where it names no row"),
        ("slowdown", "float64", "ratio", "time of the pick / time of the best"),
        ("infeasible", "boolean", "", "the pick did not run"),
        ("top2_slowdown", "float64", "ratio", "of the better of the first two"),
    ),
    *_taken("folds", _DATASET, CONV.shape_names),
    *_declared("folds", True, *_FOLD),
    *_declared("folds", False, ("row", "int64", "", "position in the dataset, for random rows")),
)  # fmt: skip

_KERNEL_NAMES = [column.name for column in _KERNELS]
KERNEL_NUMBERS = tuple(_KERNEL_NAMES[_KERNEL_NAMES.index("grid_x") : _KERNEL_NAMES.index("l2_read_sectors")])
"""The numbers of a kernel table, after its key, ``kernel_index`` and ``kernel_name``; other counters may join them."""
OPTIONAL_NUMBERS = (*(c.name for c in _DATASET if not c.required and c.kind == "float64"), "repeats")
OPTIONAL_TEXTS = tuple(c.name for c in _DATASET if not c.required and c.kind == "text")

COLUMNS = (*_DATASET, *_KERNELS, *_PREDICTIONS, *_RESULTS, *_JUDGED)
"""All of them, table by table."""
