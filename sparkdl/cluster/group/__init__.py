"""The process group of a gang: rendezvous, ranks, collectives."""
