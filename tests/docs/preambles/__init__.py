"""What pages take for granted, a module for each page; tests/docs/running.py says how they are used."""
