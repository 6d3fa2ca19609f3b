"""Feature stages of pyspark.ml, read from the folder of a saved pipeline and computed in numpy, without Spark.

    pipeline = read_pipeline("/models/adult", others).needed(["prediction"])
    columns = pipeline.transform({name: Column.of(frame[name], name) for name in pipeline.inputs})

Each stage is a frozen dataclass in float64, whose result equals Spark's. The room imports neither pyspark nor torch.

| file | stages |
|---|---|
| assembling | VectorAssembler |
| hashing | FeatureHasher |
| labels | StringIndexerModel, IndexToString, OneHotEncoderModel |
| numbers | ImputerModel, Bucketizer, Binarizer |
| scaling | StandardScalerModel, MinMaxScalerModel, MaxAbsScalerModel, RobustScalerModel, Normalizer |
| reader | PipelineModel, also inside another |
"""
