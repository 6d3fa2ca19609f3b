"""Predictions of a model on the rows of a DataFrame."""
