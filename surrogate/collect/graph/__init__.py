"""cuDNN's graph API (the "backend" functions of cudnn_graph.h) by ctypes: its engines, its heuristic, with a
GPU or for one that is only described.
"""
