"""Iteration time from a trace: host overheads, kernel times measured or predicted, two clocks (Lin et al.).

``iteration_times(trace)`` walks the iterations of a trace; ``measure_overheads(host_work(trace))`` gives overheads that
other traces may use, ``Overheads.save`` and ``load_overheads`` keep them as JSON. Source: Lin et al., "Building a
performance model for deep learning recommendation model training on GPUs" (HiPC 2022, TPDS 2024).
"""
