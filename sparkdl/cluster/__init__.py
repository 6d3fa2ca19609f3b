"""Gangs of workers: launch, rendezvous, failure detection, shutdown and restart."""
