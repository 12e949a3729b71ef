"""Public names and where they are defined; each is imported on first use."""

from .diff import trace_diff as trace_diff
from .events.parts import find_layers as find_layers
from .events.parts import iterations as iterations
from .events.parts import trim as trim
from .events.read import read_trace as read_trace
from .events.tables import Trace as Trace
from .findings import advice as advice
from .iteration.ranks import rank_summary as rank_summary
from .kernels import GROUPINGS as GROUPINGS
from .kernels import kernel_table as kernel_table
from .kernels import with_counters as with_counters
from .leveled import leveled_traces as leveled_traces
from .leveled import merge_levels as merge_levels
from .profiling import Profile as Profile
from .profiling import profile as profile
from .result import ResultTable as ResultTable
from .spans import LEVELS as LEVELS
from .spans import Spans as Spans
from .spans import trace_spans as trace_spans
from .tables import batch_sweep as batch_sweep
from .tables import copy_table as copy_table
from .tables import layer_table as layer_table
from .tables import step_table as step_table
from .tables import summary as summary
from .tables import type_table as type_table
from .whatif import what_ifs as what_ifs
