"""cuDNN's engine configurations, the candidates of library cudnn-graph.

Only the configurations that cuDNN's own heuristic lists for a problem and a GPU compete. The heuristic runs without a
driver, in a child process. It must be of the release that was measured, because every release has other engines.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.features.algorithms import CUDNN_GRAPH
from surrogate.features.errors import InputError
from surrogate.features.families import AnyProblem
from surrogate.prediction.ranking import NEVER_MEASURED, Ranker, Ranking
from surrogate.prediction.results import Estimate, Excluded

if TYPE_CHECKING:
    from surrogate.collect.device import HeuristicEntry

NOT_MEASURED = (
    f"no engine configuration of cuDNN ({CUDNN_GRAPH}) was measured on {{}}; `seer collect --device cudnn --engines`"
    " measures them, and `seer train` fits them"
)


Listed = Mapping[str, "HeuristicEntry"]
"""Name → entry of the configurations that cuDNN's heuristic lists for a problem."""


def listed_configurations(ranker: Ranker, problems: Sequence[Any]) -> tuple[list[Listed], str]:
    """Return the configurations of each problem on the ranker's GPU, and an empty text.

    If cuDNN or its frontend is missing, crashes, or is of another release, raise `InputError`. But if other libraries
    compete, return no configuration, and the reason.
    """
    from surrogate.collect.device import DeviceLostError
    from surrogate.collect.open_device import open_ranking

    versions = dict(ranker.setting.versions)
    try:
        with closing(open_ranking(ranker.setting.gpu)) as ranking:
            installed, measured = ranking.device_info().library_version, versions[CUDNN_GRAPH]
            if installed != measured:
                raise InputError(f"configurations of cuDNN {measured} were measured; install it, this is {installed}")
            return [{entry.algorithm: entry for entry in ranking.heuristic(problem)} for problem in problems], ""
    except (DeviceLostError, InputError) as error:
        reason = str(error) if isinstance(error, InputError) else f"cuDNN's heuristic failed: {error}"
        if len(versions) == 1:
            raise InputError(reason) from None
        return [{}] * len(problems), reason


def has_engines(ranker: Ranker) -> bool:
    """Return whether engine configurations are candidates."""
    return any(library == CUDNN_GRAPH for library, _ in ranker.setting.versions)


def is_listed(ranker: Ranker, sizes: np.ndarray) -> np.ndarray:
    """Return False (problems, candidates) for configurations that cuDNN's heuristic does not list."""
    listed, _ = listed_configurations(ranker, [ranker.setting.problem(row) for row in sizes.tolist()])
    return np.array([[c.library != CUDNN_GRAPH or c.algorithm in names for c in ranker.candidates] for names in listed])


def only_listed(ranker: Ranker, problems: Sequence[AnyProblem], rankings: Sequence[Ranking]) -> list[Ranking]:
    """Return the rankings without unlisted configurations. Listed ones that were never measured are excluded.

    A listed configuration has the workspace and the determinism that cuDNN states for the problem.
    """
    measured = {each.algorithm for each in ranker.candidates if each.library == CUDNN_GRAPH}
    answers = []
    listed_by_problem, failure = listed_configurations(ranker, problems)
    for ranking, listed in zip(rankings, listed_by_problem, strict=True):
        unlisted = measured - listed.keys()
        estimates = [
            _as_listed(estimate, listed) for estimate in ranking.estimates if estimate.candidate.name not in unlisted
        ]
        excluded = [each for each in ranking.excluded if each.algorithm not in unlisted]
        excluded += [Excluded(name, NEVER_MEASURED) for name in listed if name not in measured]
        excluded += [Excluded(CUDNN_GRAPH, failure)] if failure else []
        answers.append(Ranking(tuple(estimates), tuple(excluded)))
    return answers


def _as_listed(estimate: Estimate, listed: Listed) -> Estimate:
    """Return the estimate with the workspace and the determinism of its entry, if it has one."""
    entry = listed.get(estimate.candidate.name)
    if entry is None:
        return estimate
    candidate = replace(estimate.candidate, deterministic=entry.deterministic is not False)
    return estimate._replace(candidate=candidate, workspace_bytes=entry.workspace_bytes or 0)
