"""A user's own list of problems as a plan."""

from pathlib import Path

from surrogate.collect.plan import PlannedProblem
from surrogate.dataset.problem_list import read_list
from surrogate.features.conv import Conv


def file_problems(path: str | Path) -> list[PlannedProblem]:
    """The convolutions of a list (see `surrogate.dataset.problem_list`), in its order, with its networks.

    Raises `InputError` naming the file, the line, what came and the rule.
    """
    return [
        PlannedProblem(listed.problem, "plan", listed.networks)
        for listed in read_list(path)
        if isinstance(listed.problem, Conv)
    ]
