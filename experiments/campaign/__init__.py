"""A GPU's measuring campaign, slice by slice: what `experiments.collect_gpu` runs."""
