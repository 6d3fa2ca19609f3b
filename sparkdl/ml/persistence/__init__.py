"""Saved models and estimators, and stable descriptions of values."""
