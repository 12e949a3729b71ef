"""Measure problems on devices: plans of problems, the devices, and the crash-safe log of measurements."""
