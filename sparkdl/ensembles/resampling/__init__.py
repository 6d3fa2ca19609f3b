"""Random rows and random features of each member."""
