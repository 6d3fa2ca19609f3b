"""Saved estimators and models, and the identity of values."""
