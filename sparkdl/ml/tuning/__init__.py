"""Hyperparameter search: trials in parallel, which pause at rungs and continue."""
