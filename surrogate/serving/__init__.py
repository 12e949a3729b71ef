"""What `surrogate.predictor` is made of: trees as arrays, features of one problem, limits, results. numpy only."""
