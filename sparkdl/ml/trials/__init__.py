"""Fits inside a fit: the members of an ensemble, or the trials of a search, each in a task or by the driver."""
