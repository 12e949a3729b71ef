"""Public names and where they are defined; each is imported on first use."""

from .diff import trace_diff as trace_diff
from .events.parts import find_layers as find_layers, iterations as iterations, trim as trim
from .events.read import read_trace as read_trace
from .events.tables import Trace as Trace
from .findings import advice as advice
from .idle import idle_table as idle_table
from .iteration.ranks import rank_summary as rank_summary
from .kernels import GROUPINGS as GROUPINGS, kernel_table as kernel_table, with_counters as with_counters
from .labels import label_table as label_table
from .profiling import Profile as Profile, profile as profile
from .result import ResultTable as ResultTable
from .spans import LEVELS as LEVELS, Spans as Spans, trace_spans as trace_spans
from .tables import (
    batch_sweep as batch_sweep,
    copy_table as copy_table,
    layer_table as layer_table,
    step_table as step_table,
    summary as summary,
    type_table as type_table,
)
from .tracer import (
    Tracer as Tracer,
    clear as clear,
    disable as disable,
    enable as enable,
    leveled as leveled,
    leveled_traces as leveled_traces,
    merge_levels as merge_levels,
    module_spans as module_spans,
    operator_spans as operator_spans,
    recorded as recorded,
    span as span,
)
from .whatif import what_ifs as what_ifs
