"""Training on one gang: the loop, its state, data loading, losses, metrics and callbacks."""
