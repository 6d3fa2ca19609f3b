"""Predictions without Spark: saved models, feature stages, scoring. Serving hosts have no pyspark."""
