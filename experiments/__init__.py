"""One script per result: what SEER's evaluation says on public measurements, and what ours says on the same rows."""
