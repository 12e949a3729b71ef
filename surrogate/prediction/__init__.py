"""One problem, or a table of them, to times and a pick: the predictor, its engines, autotuning and export."""
