"""Deep learning on the data a Spark cluster already holds."""
