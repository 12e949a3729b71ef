"""Training on tables beyond one machine's memory: dealt to disk by shape, then read part by part.

`surrogate.streaming.shards` deals, `pages` computes features once per part, `fit` trains from the pages (external
memory), `cluster` trains over Dask workers, and `bundle` adds intervals and the model card.
"""

from surrogate.streaming.bundle import train_streaming
from surrogate.streaming.cluster import fit_on_cluster
from surrogate.streaming.fit import fit_streaming

__all__ = ["fit_on_cluster", "fit_streaming", "train_streaming"]
