"""Public names and where they are defined; each is imported on first use."""

from .build import graph_of as graph_of
from .tasks import EDGE_KINDS as EDGE_KINDS
from .tasks import TASK_KINDS as TASK_KINDS
from .tasks import Graph as Graph
from .tasks import Resource as Resource
from .tasks import Timeline as Timeline
from .tasks import bound as bound
from .tasks import critical_path as critical_path
from .tasks import path_us as path_us
from .tasks import serialised_pct as serialised_pct
from .tasks import simulate as simulate
