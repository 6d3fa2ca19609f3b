"""Saved Params and models: their descriptions and their files."""
