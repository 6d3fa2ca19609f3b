"""Gangs of workers: how they start, meet, fail, stop and start again."""
