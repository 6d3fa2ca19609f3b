"""The scheduled pipeline: clean, train, compare, publish, score."""
