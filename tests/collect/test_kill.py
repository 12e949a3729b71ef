"""A run killed at random moments, again and again, ends with the table of an uninterrupted one."""

import random
import signal
import subprocess
import sys
import time

import pandas as pd

from surrogate.collect.merge import merge_runs

CHILD = """
import sys, time
from surrogate.collect.plan import Caps
from surrogate.collect.log import RunLog
from surrogate.collect.plan_source import PlanSource
from surrogate.collect.protocol import RepeatPolicy
from surrogate.collect.replay import ReplayDevice
from surrogate.collect.run import header_for, run

class Slow(ReplayDevice):
    def measure(self, conv, algorithm, policy):
        time.sleep(0.001)
        return super().measure(conv, algorithm, policy)

recording, output = sys.argv[1:]
plan = PlanSource(recording=recording, seed=3).build(Caps(0))
device = Slow(recording)
print("ready", flush=True)
with RunLog(output, header_for(plan, device, RepeatPolicy())) as log:
    run(plan, device, log)
"""


def replay(recording, output, kill_after_s=None):
    """Run the child; with ``kill_after_s``, SIGKILL it so long after it began. True where it finished."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(recording), str(output)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        child.send_signal(signal.SIGKILL)
    child.communicate(timeout=120)
    assert child.returncode in (0, -signal.SIGKILL)
    return child.returncode == 0


def interrupted(recording, folder, kills, longest_s):
    """Kill a run ``kills`` times at random moments, let it finish; the number of kills that struck before the end."""
    moments = random.Random(11)
    struck = sum(
        not replay(recording, folder / "cut.jsonl", moments.uniform(0, longest_s)) for _ in range(kills)
    )
    assert replay(recording, folder / "cut.jsonl")
    return struck


def test_killed_runs_end_alike(make_plan, record, tmp_path):
    recording = record(make_plan(150), name="recording.jsonl")
    assert replay(recording, tmp_path / "whole.jsonl")
    assert interrupted(recording, tmp_path, 2, 0.2) == 2
    whole, cut = (merge_runs([tmp_path / f"{name}.jsonl"]) for name in ("whole", "cut"))
    pd.testing.assert_frame_equal(cut.rows, whole.rows)
    pd.testing.assert_frame_equal(cut.kernels, whole.kernels)
    assert cut.metadata["anchors"] == whole.metadata["anchors"]
    assert cut.metadata["duplicates_dropped"] == 0
