"""The main job: every model on every fold of a dataset, judged, and how the result is written."""
