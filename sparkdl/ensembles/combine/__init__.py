"""Combination of the members' predictions."""
