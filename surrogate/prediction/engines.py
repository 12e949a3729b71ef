"""cuDNN's engine configurations, the candidates of library cudnn-graph.

Only the configurations that cuDNN's own heuristic lists for a problem and a GPU compete. The heuristic runs without a
driver, in a child process. It must be of the release that was measured, because every release has other engines.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.features import CUDNN_GRAPH, InputError, version_key
from surrogate.features.families import AnyProblem
from surrogate.prediction.ranking import Ranker, Ranking
from surrogate.prediction.results import NOTES, Estimate, Excluded

if TYPE_CHECKING:
    from surrogate.collect.device import HeuristicEntry

Listed = Mapping[str, "HeuristicEntry"]
"""Name → entry of the configurations that cuDNN's heuristic lists for a problem."""


def listed_configurations(ranker: Ranker, problems: Sequence[Any]) -> list[Listed]:
    """Return the configurations of each problem on the ranker's GPU.

    Raises `InputError` if cuDNN or its frontend is missing, crashes, or is not of the release that was measured.
    """
    from surrogate.collect.device import DeviceLostError
    from surrogate.collect.open_device import open_ranking

    version = dict(ranker.setting.versions)[CUDNN_GRAPH]
    measured = ranker.family_model.domain.versions_of(CUDNN_GRAPH)
    with closing(open_ranking(ranker.setting.gpu)) as ranking:
        try:
            installed = ranking.device_info().library_version
            if version not in measured or installed != version:
                releases = ", ".join(sorted(measured, key=version_key))
                rule = f"configurations of cuDNN {releases} were measured"
                raise InputError(f"{rule}; ask for that release and install it, {installed} is installed")
            distinct = dict.fromkeys(problems)
            lists = {problem: {each.algorithm: each for each in ranking.heuristic(problem)} for problem in distinct}
            return [lists[problem] for problem in problems]
        except DeviceLostError as error:
            raise InputError(f"cuDNN's heuristic failed: {error}") from None


def has_engines(ranker: Ranker) -> bool:
    """Return whether engine configurations are candidates."""
    return any(library == CUDNN_GRAPH for library, _ in ranker.setting.versions)


def is_listed(ranker: Ranker, sizes: np.ndarray) -> np.ndarray:
    """Return False (problems, candidates) for configurations that cuDNN's heuristic does not list."""
    listed = listed_configurations(ranker, [ranker.setting.problem(row) for row in sizes.tolist()])
    return np.array([[c.library != CUDNN_GRAPH or c.algorithm in names for c in ranker.candidates] for names in listed])


def rankings_of(ranker: Ranker, problems: Sequence[AnyProblem]) -> list[Ranking]:
    """Return the rankings without unlisted configurations. Listed ones that were never measured are excluded.

    A listed configuration has the workspace and the determinism that cuDNN states for the problem.
    """
    rankings = ranker.rank_many(problems)
    if not has_engines(ranker):
        return rankings
    measured = {each.algorithm for each in ranker.candidates if each.library == CUDNN_GRAPH}
    answers = []
    for problem, ranking, listed in zip(problems, rankings, listed_configurations(ranker, problems), strict=True):
        unlisted = measured - listed.keys()
        estimates = [_as_listed(each, listed) for each in ranking.estimates if each.candidate.name not in unlisted]
        excluded = [each for each in ranking.excluded if each.algorithm not in unlisted]
        excluded += [Excluded(name, NOTES["never_measured"]) for name in listed if name not in measured]
        refusals = [ranker.memory_refusal(problem, estimate.workspace_bytes) for estimate in estimates]
        pairs = list(zip(estimates, refusals, strict=True))
        excluded += [Excluded(estimate.candidate.name, reason) for estimate, reason in pairs if reason]
        answers.append(Ranking(tuple(estimate for estimate, reason in pairs if not reason), tuple(excluded)))
    return answers


def _as_listed(estimate: Estimate, listed: Listed) -> Estimate:
    """Return the estimate with the workspace and the determinism of its entry, if it has one."""
    entry = listed.get(estimate.candidate.name)
    if entry is None:
        return estimate
    candidate = replace(estimate.candidate, deterministic=entry.deterministic is not False)
    return estimate._replace(candidate=candidate, workspace_bytes=entry.workspace_bytes or 0)
