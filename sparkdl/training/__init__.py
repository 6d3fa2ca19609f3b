"""One training run on one gang: the loop, its state, its data, its metrics."""
