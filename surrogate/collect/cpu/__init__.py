"""The `cpu` device: this machine's CPU and plain NumPy algorithms, under the dataset's library name ``reference``."""
