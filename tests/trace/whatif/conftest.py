"""The invented trace of three steps and the real ResNet-50 as graphs with their settings."""

import pytest

from surrogate.trace.graph import Graph, graph_of
from surrogate.trace.profiling import profile
from surrogate.trace.whatif import Interconnect, WhatIfSetting, setting_of


@pytest.fixture(scope="session")
def made_profile(made_once):
    return profile(made_once)


@pytest.fixture(scope="session")
def made(made_profile) -> Graph:
    return graph_of(made_profile.trace, made_profile.layers)


@pytest.fixture
def setting(made_profile) -> WhatIfSetting:
    return setting_of(made_profile, target="h100-sxm", network=Interconnect(4, 10.0, 5.0))


@pytest.fixture(scope="session")
def resnet_profile(resnet):
    return profile(resnet)


@pytest.fixture(scope="session")
def resnet_graph(resnet_profile) -> Graph:
    return graph_of(resnet_profile.trace, resnet_profile.layers)


@pytest.fixture
def resnet_setting(resnet_profile) -> WhatIfSetting:
    return setting_of(resnet_profile, target="h100-sxm")
