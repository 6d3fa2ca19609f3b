"""Feature stages of pyspark.ml, read from the folder of a saved pipeline and computed in numpy, without Spark.

    pipeline = read_pipeline("/models/adult", others).needed(["prediction"])
    columns = pipeline.transform({name: Column.of(table[name].combine_chunks()) for name in pipeline.inputs})

Each stage is a frozen dataclass in float64, whose result equals Spark's. The room imports neither pyspark nor torch.

| file | stages |
|---|---|
| conversion | none: it converts the columns of a request to Spark's types |
| assembling | VectorAssembler, FeatureHasher |
| labels | StringIndexerModel, IndexToString, OneHotEncoderModel |
| numbers | ImputerModel, Bucketizer, Binarizer |
| scaling | StandardScalerModel, MinMaxScalerModel, MaxAbsScalerModel, RobustScalerModel, Normalizer |
| reader | PipelineModel, also inside another |
"""
