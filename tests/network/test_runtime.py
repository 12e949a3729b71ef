"""Networks of small kernels, whose time is bound by launches on the host."""

from dataclasses import replace

import pytest

from surrogate.network import Network, load_predictors
from surrogate.network.network import Layer
from surrogate.network.operators import elementwise, gemm
from surrogate.network.runtime import HOSTS, RUNTIMES, count_launches, shipped_hosts, with_runtime

PROBLEMS = (gemm(8, 8, 8), elementwise("relu", (8,), "fp32")) * 9
SMALL = tuple(Layer(f"layer{i}", "op", problem) for i, problem in enumerate(PROBLEMS))
NETWORK = Network("small", SMALL, ignored={"view": 7, "detach": 2}, unsupported={"fft": 3})


def test_launch_time_depends_on_the_counts_of_libraries_operators_and_views() -> None:
    assert count_launches(NETWORK) == (9, 9 + 3, 7 + 2)
    shipped = shipped_hosts()
    cost = shipped.launch_costs["eager"]
    host = with_runtime(NETWORK, "eager", "slow").host
    assert host and host.launch_us == pytest.approx(
        shipped.hosts["slow"] * (9 * cost.library_us + 12 * cost.operator_us + 9 * cost.view_us)
    )


def test_a_pass_takes_the_longer_of_kernels_and_launches() -> None:
    predictors = load_predictors("h100-sxm")
    small = predictors.time(with_runtime(NETWORK, "eager"))
    host = small.host_time
    assert host and small.total_us == pytest.approx(host.launch_us + host.floor_us)
    assert small.kernels_us < host.launch_us
    large = replace(NETWORK, layers=(Layer("large", "op", gemm(8192, 8192, 8192)),))
    time = predictors.time(with_runtime(large, "eager"))
    assert time.host_time and time.total_us == pytest.approx(time.kernels_us + time.host_time.floor_us)
    assert "launches bound it" in small.breakdown() and "kernels bound it" in time.breakdown()


def test_a_faster_host_and_graphs_reduce_launch_time(refused) -> None:
    times = {host: with_runtime(NETWORK, "eager", host).host for host in HOSTS}
    assert times["fast"] and times["usual"] and times["slow"]
    assert times["fast"].launch_us < times["usual"].launch_us < times["slow"].launch_us
    of_runtime = [with_runtime(NETWORK, runtime, "usual").host for runtime in RUNTIMES]
    launches = [host.launch_us for host in of_runtime if host]
    assert launches == sorted(launches, reverse=True)
    with refused("runtime 'graph' is unknown", "did you mean graphs"):
        with_runtime(NETWORK, "graph")
