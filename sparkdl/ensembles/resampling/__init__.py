"""Random rows and random features for each member."""
