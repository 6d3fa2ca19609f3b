"""pyspark.ml's front door: estimators, and the model they return."""
