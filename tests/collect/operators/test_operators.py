"""Samples of operators, the bytes of their operands, and the loop that measures them."""

import numpy as np
from hypothesis import given, settings, strategies as st

from surrogate.collect.device import DeviceInfo, DeviceLostError, Measurement
from surrogate.collect.merge import merge_runs
from surrogate.collect.operators import KINDS, MIN_BYTES, operand_bytes, operator_key, parse_operator, sample_operators
from surrogate.collect.run import MAX_LOST, TIME_UP, collect_operators
from surrogate.features.families import FAMILY_OF_KIND, operator

SMALL = 1 << 18


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5), st.integers(1, 40))
def test_samples_are_distinct_and_within_the_limit_of_bytes(seed, count):
    operators = sample_operators(count, seed, SMALL)
    assert len(set(operators)) == count and operators == sample_operators(count, seed, SMALL)
    assert all(MIN_BYTES <= operand_bytes(operator) <= SMALL for operator in operators)
    assert [parse_operator(operator_key(operator)) for operator in operators] == operators


def test_operand_bytes_counts_every_tensor_once():
    assert operand_bytes(operator("gemm", batch=2, m=3, n=5, k=7)) == 4 * 2 * (21 + 35 + 15)
    assert operand_bytes(operator("add", n=1, c=2, h=3, w=4)) == 4 * 72
    assert operand_bytes(operator("batch_norm", n=1, c=2, h=3, w=4)) == 4 * 48
    assert operand_bytes(operator("max_pool", n=1, c=1, h=4, w=4, window=2, stride=2)) == 4 * (16 + 4)
    bag = operator("embedding_bag", batch=8, rows=10, tables=3, bag=4, dim=16, rows_per_block=4)
    assert operand_bytes(bag) == 4 * 3 * (160 + 32 + 128)


class FakeOperatorDevice:
    """A device with a clock that is lost at the problems ``lost_at``."""

    def __init__(self, lost_at=()):
        self.seen, self.lost_at, self.now_s = [], lost_at, 0.0

    def device_info(self):
        return DeviceInfo("Fake GPU", "cuda", "9.1.0")

    def measure(self, operator, policy):
        self.seen.append(operator)
        self.now_s += 10.0
        if operator_key(operator) in self.lost_at:
            raise DeviceLostError("sticky")
        return Measurement("ok", "", (3.0, 1.0, 2.0), (4.0, 4.0, 4.0), "cupti", sm_clock_mhz=990.0, throttle_reasons=8)

    def conditions(self):
        return {"sm_clock_mhz": 1980.0, "temperature_c": 50.0}

    def close(self):
        pass


def test_collect_operators_stops_in_time_and_continues(tmp_path):
    operators, path, device = sample_operators(8, 0), tmp_path / "run.jsonl", FakeOperatorDevice()
    outcome = collect_operators(operators, device, path, minutes=0.75, clock=lambda: device.now_s)
    assert outcome.stopped == TIME_UP and outcome.problems_done == 4
    again = FakeOperatorDevice()
    assert not collect_operators(operators, again, path).stopped and again.seen == operators[4:]
    assert merge_runs([path]).frame["time_us"].tolist() == [2.0] * 8


def test_every_operator_becomes_a_row_of_its_family(tmp_path):
    path = tmp_path / "run.jsonl"
    outcome = collect_operators(sample_operators(len(KINDS), 1, SMALL), FakeOperatorDevice(), path)
    assert outcome.statuses == {"ok": len(KINDS)}
    rows = merge_runs([path]).frame.set_index("operator")
    assert rows["family"].to_dict() == {kind: FAMILY_OF_KIND[kind] for kind in KINDS}
    expected = {"gpu": "Fake GPU", "library": "cuda", "dtype": "fp32", "math": "fma", "algorithm": "default"}
    expected |= {"status": "ok", "timer": "cupti", "throttled": True, "sm_clock_mhz": 990.0}
    for name, value in expected.items():
        assert set(rows[name]) == {value}, name
    assert rows.loc["gemm", ["batch", "m", "n", "k"]].notna().all() and np.isnan(rows.loc["gemm", "h"])
    pool = rows.loc["max_pool"]
    assert pool["window_w"] == pool["window"] and pool["pad"] == 0


def test_a_lost_device_costs_one_problem(tmp_path):
    operators, path = sample_operators(9, 0), tmp_path / "run.jsonl"
    assert not collect_operators(operators, FakeOperatorDevice({operator_key(operators[1])}), path).stopped
    assert merge_runs([path]).frame["status"].tolist() == ["ok"] * 8
    again = FakeOperatorDevice()
    assert not collect_operators(operators, again, path).stopped and again.seen == [operators[1]]
    assert merge_runs([path]).frame["status"].tolist() == ["ok"] * 9
    lost = FakeOperatorDevice(set(map(operator_key, operators)))
    outcome = collect_operators(operators, lost, tmp_path / "gone.jsonl")
    assert outcome.statuses == {"lost": MAX_LOST} and "lost" in outcome.stopped and outcome.failed
    assert not outcome.problems_done
