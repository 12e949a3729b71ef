"""Public names and where they are defined: each is imported when it is first asked for."""

from . import formats as formats
from . import models as models
from . import network as network
from . import trace as trace
from . import tuning as tuning
from .bundle.bundle import Bundle as Bundle
from .bundle.bundle import save as save
from .bundle.train import train as train
from .dataset.store import Dataset as Dataset
from .dataset.store import read_dataset as read_dataset
from .dataset.store import write_dataset as write_dataset
from .features.conv import Conv as Conv
from .features.errors import InputError as InputError
from .features.gpu import Gpu as Gpu
from .features.gpu import gpu as gpu
from .features.gpu import gpus as gpus
from .prediction.autotune import autotune as autotune
from .prediction.evaluate import calibrate as calibrate
from .prediction.evaluate import evaluate as evaluate
from .prediction.predictor import Predictor as Predictor
from .prediction.results import Prediction as Prediction
from .prediction.results import Predictions as Predictions
from .prediction.results import Selection as Selection
from .prediction.shipped import load as load
from .prediction.shipped import predict as predict
from .prediction.shipped import select as select
from .report.comparison import Comparison as Comparison
from .report.comparison import compare as compare

__version__: str
