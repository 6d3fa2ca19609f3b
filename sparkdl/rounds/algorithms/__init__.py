"""Algorithms of rounds, one per file."""
