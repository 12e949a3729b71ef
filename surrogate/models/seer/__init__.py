"""SEER (PACT 2021): `seer-paper` from kernel counters, `seer-time-only` where only times were measured."""
