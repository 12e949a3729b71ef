"""cuDNN's legacy convolution API by ctypes, on CuPy's memory and events, with kernel times from CUPTI."""
