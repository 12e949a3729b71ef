"""Distinct layers of real networks over batches 1 … 256."""

from surrogate.collect.networks import NETWORKS, layers
from surrogate.collect.plan import PlannedProblem

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def network_problems(batches: tuple[int, ...] = BATCHES) -> list[PlannedProblem]:
    """Every distinct layer at every batch, with the names of the networks it occurs in."""
    found: dict[str, PlannedProblem] = {}
    for name in NETWORKS:
        for conv in layers(name):
            known = found.get(str(conv))
            names = (*known.networks, name) if known else (name,)
            found[str(conv)] = PlannedProblem(conv, "network", tuple(dict.fromkeys(names)))
    return [
        PlannedProblem(problem.conv.with_batch(n), problem.origin, problem.networks)
        for problem in found.values()
        for n in batches
    ]
