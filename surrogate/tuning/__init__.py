"""One sequential search over the configurations of a kernel: which to measure next, from what is known so far."""
