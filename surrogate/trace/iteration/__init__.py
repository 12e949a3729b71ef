"""Iteration time from a trace: host overheads, kernel times measured or predicted, a host and a device clock.

``iteration_times(trace)`` predicts the iterations of a trace. ``measure_overheads(host_work(trace))`` gives overheads
that other traces can use; ``Overheads.save`` and ``load_overheads`` keep them as JSON. Source: Lin et al., "Building a
performance model for deep learning recommendation model training on GPUs" (HiPC 2022, TPDS 2024).
"""
