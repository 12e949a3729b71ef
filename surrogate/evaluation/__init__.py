"""Which model picks best: the judge, the scorecard, comparisons over folds, and the search for settings."""
