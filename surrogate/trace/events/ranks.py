"""Keep one rank of a JSON file into which the traces of several ranks were merged.

PyTorch's profiler records one process. Host events of several processes come from a merger. The ranks may have the same
correlation ids, step numbers and device numbers.
"""

import re
from collections.abc import Sequence

import numpy as np

from surrogate.trace import events
from surrogate.trace.events.launches import ANY_PROCESS, SKEW_NS, Keys, launched_by
from surrogate.trace.events.tables import Columns, Ints, keep_rows, linked

_NUMBER = re.compile(r"\d+\W*$")


def keep_one_rank(
    source: str, parts: dict[str, Columns], process_of: Ints, names: Sequence[str], calls: Keys
) -> list[str]:
    """Keep the events of one rank in ``parts`` if several wrote the file, and return a note.

    The rank with the most device time stays, without device time the one with the most host events.

    Parameters
    ----------
    source
        The file.
    parts
        The raw columns by table. The column ``process`` of the activities is an index in ``names``.
    process_of, names
        The process of each thread, and the names of the processes.
    calls
        The keys of the calls.

    Raises
    ------
    InputError
        If the ranks have one process number.
    """
    ranges, activities = parts["ranges"], parts["activities"]
    if _has_twins(ranges, process_of):
        raise events.refusal("twins", source=source)
    is_work = np.isin(ranges["kind"], (events.OPERATOR, events.STEP))
    worked = process_of[np.concatenate([ranges["thread"][is_work], parts["calls"]["thread"]])]
    ranks: list[int] = np.unique(worked).tolist()
    if len(ranks) < 2:
        return []
    owner = _owners(activities, names, ranks, calls)
    times = np.bincount(owner + 1, activities["end_ns"] - activities["start_ns"], len(names) + 1)[1:]
    counts = np.bincount(worked, minlength=len(names))
    chosen = max(ranks, key=lambda rank: (times[rank], counts[rank]))
    devices = np.unique(activities["device"][owner == chosen])
    kept = {"activities": owner == chosen, "syncs": np.isin(parts["syncs"]["device"], devices)}
    for name, part in parts.items():
        keep_rows(part, kept[name] if name in kept else process_of[part["thread"]] == chosen)
    others = ", ".join(names[rank] for rank in ranks if rank != chosen)
    return [events.text("ranks", count=len(ranks), chosen=names[chosen], others=others)]


def _has_twins(ranges: Columns, process_of: Ints) -> bool:
    """Return whether two threads of one process are in the same step at the same time."""
    steps = np.flatnonzero(ranges["kind"] == events.STEP)
    steps = steps[np.lexsort((ranges["start_ns"][steps], ranges["name"][steps]))]
    before, after = steps[:-1], steps[1:]
    twins = (ranges["name"][before] == ranges["name"][after]) & (ranges["start_ns"][after] < ranges["end_ns"][before])
    threads = ranges["thread"][before], ranges["thread"][after]
    return bool((twins & (threads[0] != threads[1]) & (process_of[threads[0]] == process_of[threads[1]])).any())


def _owners(activities: Columns, names: Sequence[str], ranks: list[int], calls: Keys) -> Ints:
    """Return the rank of each activity, -1 if unknown.

    A merger may write the rank into the process of every event, such as ``[TP01] 0``. Else a device belongs to the rank
    that can have launched most of its activities, of equals to the one at its own place in the file. Two ranks have one
    device number only if there are fewer devices than ranks.
    """
    from scipy.optimize import linear_sum_assignment  # imported late: most files hold one rank

    labels = {_NUMBER.sub("", names[rank]): rank for rank in ranks}
    by_label = np.array([labels.get(_NUMBER.sub("", name), -1) for name in names])[activities["process"]]
    if "" not in labels and len(labels) == len(ranks) and (by_label >= 0).all():
        return by_label
    devices, position = np.unique(activities["device"], return_inverse=True)
    no_process = np.full(len(position), ANY_PROCESS)
    keys = Keys(activities["correlation"], activities["start_ns"], activities["kind"], no_process)
    if len(devices) < len(ranks):
        return linked(calls.process, launched_by(keys, calls))
    # Processes are numbered in the order of the file. A device at a rank's place there counts half an activity more.
    in_file = np.argsort([activities["process"][position == at].min() for at in range(len(devices))])
    counts = np.zeros((len(ranks), len(devices)))
    for place, rank in enumerate(ranks):
        call = launched_by(keys._replace(process=no_process + rank + 1), calls)
        good = (call >= 0) & (keys.start_ns - linked(calls.start_ns, call) >= -SKEW_NS)
        counts[place] = np.bincount(position[good], minlength=len(devices))
        counts[place, in_file[place]] += 0.5
    owner = counts.argmax(axis=0)
    of_rank, own_device = linear_sum_assignment(counts, maximize=True)  # one device for each rank
    owner[own_device] = of_rank
    return np.array(ranks)[owner][position]
