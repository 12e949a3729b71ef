"""Public names and where they are defined; each is imported on first use."""

from .answers import (
    WHAT_IF_RULES as WHAT_IF_RULES,
    WhatIf as WhatIf,
    WhatIfAnswer as WhatIfAnswer,
    evaluate as evaluate,
    help_texts as help_texts,
    user_function as user_function,
    what_if as what_if,
    what_ifs as what_ifs,
    write_timeline as write_timeline,
)
from .primitives import (
    NewTask as NewTask,
    Task as Task,
    insert as insert,
    remove as remove,
    scale as scale,
    schedule as schedule,
    select as select,
)
from .setting import (
    Change as Change,
    Interconnect as Interconnect,
    WhatIfSetting as WhatIfSetting,
    setting_of as setting_of,
)
