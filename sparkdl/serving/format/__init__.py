"""The files of a saved model: architecture, weights, Params, exports; read without pyspark."""
