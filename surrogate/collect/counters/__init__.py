"""Hardware counters of a few (problem, algorithm) pairs: a profiler around a child process, its output
attributed to the pairs, and the counters joined to a kernel table.
"""
