"""cuDNN's legacy convolution API by ctypes, on memory and events of CuPy, with kernels seen through CUPTI."""
