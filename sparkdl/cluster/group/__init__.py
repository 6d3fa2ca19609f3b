"""The process group of a gang: network addresses, rendezvous, ranks and collectives."""
