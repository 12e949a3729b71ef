"""Devices → rows: plans of problems, the devices that measure them, and the crash-safe log of what was measured."""
