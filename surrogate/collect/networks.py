"""The convolutions of well-known networks, from their published tables (224 × 224 RGB images).

``networks.json`` holds every convolution at batch 1 in the order of its table: Krizhevsky 2014 (AlexNet, the one-tower
form), Simonyan and Zisserman 2015 (VGG), Szegedy et al. 2015 (Inception, without the auxiliary classifiers), Iandola et
al. 2016 (SqueezeNet), He et al. 2016 (ResNet, the stride on the 3×3), Xie et al. 2017 (ResNeXt), Huang et al. 2017
(DenseNet), Sandler et al. 2018 (MobileNet, width 1.0), Tan and Le 2019 (EfficientNet, with squeeze-and-excitation).
"""

import json
from functools import cache
from pathlib import Path

from surrogate.collect.plan import PlannedProblem, unique
from surrogate.features.conv import Conv
from surrogate.features.text import parse

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Batches at which every layer is planned."""


@cache
def networks() -> dict[str, tuple[Conv, ...]]:
    """Name → every convolution of the network in the order of its table, at batch 1, fp32 NCHW forward."""
    lines = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {name: tuple(map(parse, " ".join(layers).split())) for name, layers in lines.items()}


def network_problems() -> list[PlannedProblem]:
    """Every distinct layer at every batch, with the names of the networks it occurs in."""
    layers = unique(PlannedProblem(conv, "network", (name,)) for name, convs in networks().items() for conv in convs)
    return [PlannedProblem(layer.conv.with_batch(n), "network", layer.networks) for layer in layers for n in BATCHES]
