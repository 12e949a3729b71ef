"""Public names and where they are defined; each is imported on first use."""

from .build import graph_of as graph_of
from .tasks import (
    EDGE_KINDS as EDGE_KINDS,
    TASK_KINDS as TASK_KINDS,
    Graph as Graph,
    Resource as Resource,
    Timeline as Timeline,
    bound as bound,
    critical_path as critical_path,
    path_us as path_us,
    serialised_pct as serialised_pct,
    simulate as simulate,
)
