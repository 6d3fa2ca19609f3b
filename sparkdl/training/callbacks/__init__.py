"""What a user calls at the points of a training."""
