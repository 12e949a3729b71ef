"""Names that other packages use, and where they are defined; each is imported on first use.

The families of kernels are a package of their own, `surrogate.features.families`.
"""

from .algorithms import (
    BENCHMARK_LIMIT as BENCHMARK_LIMIT,
    CUDNN_GRAPH as CUDNN_GRAPH,
    FASTEST as FASTEST,
    MECHANISMS as MECHANISMS,
    VENDOR_LIBRARIES as VENDOR_LIBRARIES,
    Mechanism as Mechanism,
    algorithm as algorithm,
    has_fewer_flops as has_fewer_flops,
    newest as newest,
    unsupported_reason as unsupported_reason,
    version_column as version_column,
    version_key as version_key,
    version_number as version_number,
)
from .analytical import (
    BANDWIDTH_FIELDS as BANDWIDTH_FIELDS,
    BATCH_FIELDS as BATCH_FIELDS,
    KERNEL_GAP_US as KERNEL_GAP_US,
    PRODUCTS as PRODUCTS,
    TENSILE_TYPES as TENSILE_TYPES,
    TensorCoreModel as TensorCoreModel,
    tiled_product_us as tiled_product_us,
)
from .caches import BoundedCache as BoundedCache
from .conv import SETTINGS as SETTINGS, Conv as Conv, parse as parse
from .description import (
    RESERVED as RESERVED,
    Configuration as Configuration,
    Description as Description,
    Value as Value,
    description_of as description_of,
    read_description as read_description,
)
from .elementwise import (
    MAX_EXACT as MAX_EXACT,
    MAX_INT32 as MAX_INT32,
    ElementwiseFormula as ElementwiseFormula,
    Functions as Functions,
    Number as Number,
    ceil_div as ceil_div,
    checked_int as checked_int,
    round_up as round_up,
    where as where,
)
from .errors import (
    STDIN as STDIN,
    InputError as InputError,
    RowError as RowError,
    UnknownGpuError as UnknownGpuError,
    as_parameters as as_parameters,
    check_choice as check_choice,
    naming_options as naming_options,
    nearest as nearest,
    one_line_errors as one_line_errors,
    parsed_json as parsed_json,
    printable as printable,
    read_bounded as read_bounded,
    read_toml as read_toml,
    require_regular as require_regular,
    row_number as row_number,
)
from .family import (
    DEFAULT_ALGORITHM as DEFAULT_ALGORITHM,
    Family as Family,
    Formula as Formula,
    ProblemTerms as ProblemTerms,
)
from .gpu import Gpu as Gpu, canonical as canonical, gpus as gpus, registry as registry
from .kernels import LIMITS as LIMITS, WARP_THREADS as WARP_THREADS, identify as identify, launch_b_max as launch_b_max
from .problem import (
    DIRECTIONS as DIRECTIONS,
    DTYPES as DTYPES,
    ELEMENTS as ELEMENTS,
    HALF as HALF,
    INPUT as INPUT,
    LAYOUTS as LAYOUTS,
    MATHS as MATHS,
    QUANTISED as QUANTISED,
    SIZE_COLUMNS as SIZE_COLUMNS,
    WEIGHT as WEIGHT,
    ConvColumns as ConvColumns,
    element_type as element_type,
    setting as setting,
)
from .roofline import (
    COMPUTE_BOUND as COMPUTE_BOUND,
    MACHINE_NAMES as MACHINE_NAMES,
    MEMORY_BOUND as MEMORY_BOUND,
    UNDER_UTILISED as UNDER_UTILISED,
    compute_us as compute_us,
    missing_units as missing_units,
    peak_flops_table as peak_flops_table,
    peak_tflops as peak_tflops,
    roofline_us as roofline_us,
)
from .terms import output_size as output_size
from .user_code import imported_callable as imported_callable
