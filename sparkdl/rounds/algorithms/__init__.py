"""One file for each algorithm of rounds."""
