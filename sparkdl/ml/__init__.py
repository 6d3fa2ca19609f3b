"""The pyspark.ml API: estimators and the models that they return."""
