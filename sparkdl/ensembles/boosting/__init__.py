"""Boosting in rounds: each member corrects the members before it."""
