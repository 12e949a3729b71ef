"""The predictors of one GPU: convolutions by a bundle, all other operators by theirs."""

from dataclasses import dataclass
from pathlib import Path

from surrogate.features.gpu import Gpu
from surrogate.features.gpu import gpu as gpu_named
from surrogate.network.network import Network
from surrogate.network.predict import time_network
from surrogate.network.predictors import ConvPredictor, OperatorTimes
from surrogate.network.result import NetworkTime


@dataclass(frozen=True, slots=True)
class Predictors:
    """What a network needs on ``gpu``."""

    gpu: Gpu
    convs: ConvPredictor
    operators: OperatorTimes

    def time(
        self, network: Network, *, workspace_limit: int | None = None, deterministic: bool = False
    ) -> NetworkTime:
        """Predicted times of the network's layers."""
        return time_network(
            network,
            self.convs,
            self.operators,
            self.gpu,
            workspace_limit=workspace_limit,
            deterministic=deterministic,
        )


def load_predictors(gpu: str, bundle: str | Path | None = None) -> Predictors:
    """Predictors for a GPU by name; convolutions by the ``bundle`` in a folder, or by the one shipped for the GPU.

    Raises `InputError` for an unknown GPU or a damaged bundle.
    """
    from surrogate.operators import OperatorPredictor
    from surrogate.prediction.shipped import load

    device = gpu_named(gpu)
    convs = load(gpu) if bundle is None else load(Path(bundle), gpu=gpu)
    return Predictors(device, convs, OperatorPredictor.load(gpu))
