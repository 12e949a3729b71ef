"""Public names and where they are defined; each is imported on first use."""

from .answers import WHAT_IF_RULES as WHAT_IF_RULES
from .answers import WhatIf as WhatIf
from .answers import WhatIfAnswer as WhatIfAnswer
from .answers import evaluate as evaluate
from .answers import help_texts as help_texts
from .answers import user_function as user_function
from .answers import what_if as what_if
from .answers import what_ifs as what_ifs
from .answers import write_timeline as write_timeline
from .primitives import NewTask as NewTask
from .primitives import Task as Task
from .primitives import insert as insert
from .primitives import remove as remove
from .primitives import scale as scale
from .primitives import schedule as schedule
from .primitives import select as select
from .setting import Change as Change
from .setting import Interconnect as Interconnect
from .setting import WhatIfSetting as WhatIfSetting
from .setting import setting_of as setting_of
