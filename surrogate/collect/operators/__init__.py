"""Operators other than convolutions, timed by the same instruments: pooling, batch norm, ReLU, add, layout
transform, softmax, GEMM, embedding bag.
"""
