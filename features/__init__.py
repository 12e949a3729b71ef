"""The physics: problems, algorithms, devices, and the analytical terms of a kernel's time. Pure functions."""
