"""How far off a prediction may be: intervals, the distance to the training data, the chance that a pick is the best."""
