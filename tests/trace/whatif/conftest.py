"""Fixtures: graphs and settings of the invented trace of three steps and of the real ResNet-50."""

import pytest

from surrogate.trace.graph import Graph, graph_of
from surrogate.trace.profiling import profile
from surrogate.trace.whatif import Interconnect, WhatIfSetting, setting_of


@pytest.fixture(scope="session")
def invented_profile(invented_trace):
    return profile(invented_trace)


@pytest.fixture(scope="session")
def invented_graph(invented_profile) -> Graph:
    return graph_of(invented_profile.trace, invented_profile.layers)


@pytest.fixture
def setting(invented_profile) -> WhatIfSetting:
    return setting_of(invented_profile, target="h100-sxm", network=Interconnect(4, 10.0, 5.0))


@pytest.fixture(scope="session")
def resnet_profile(resnet):
    return profile(resnet)


@pytest.fixture(scope="session")
def resnet_graph(resnet_profile) -> Graph:
    return graph_of(resnet_profile.trace, resnet_profile.layers)


@pytest.fixture
def resnet_setting(resnet_profile) -> WhatIfSetting:
    return setting_of(resnet_profile, target="h100-sxm")
