"""Bases on some of the features: sliced vectors, and masked PyTorch models."""

import warnings

import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import DecisionTreeClassifier, LogisticRegression, RandomForestClassifier
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.sql import functions as F

from sparkdl import Bagging, EnsembleModel, InputColumn, InvalidInput, ParallelSGD, TorchClassifier, TorchModel
from sparkdl.ensembles.base_learner import leaf
from sparkdl.ensembles.members.driver_fits import fit_on_driver
from sparkdl.ensembles.members.member import Member, Plan
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.resampling.feature_slicing import SlicedModel, input_shapes
from sparkdl.ensembles.resampling.subspace import Subspace
from sparkdl.spark.columns import ROW_ID
from tests.ensembles.counting import Weightless
from tests.ml import nets

pytestmark = pytest.mark.slow


def fitted(base, rows, subspace):
    [model] = fit_on_driver([Member(0, base, features=subspace)], rows, Plan()).models
    return model


def chances(model, frame, **given):
    return [tuple(row) for row in model.transform(frame, **given).orderBy("id").select("probability").collect()]


def test_sliced_model_reads_all_features_and_is_stored(people, tmp_path):
    base = RandomForestClassifier(numTrees=2, maxDepth=2, seed=1)
    members = [Member(index, base, features=Subspace("sqrt", index)) for index in range(2)]
    kept = MemberStore(str(tmp_path))
    kept.begin({})
    found = fit_on_driver(members, people, Plan(kept, parallelism=2))
    for member, model in zip(members, found.models, strict=True):
        assert model.stages[0].getIndices() == member.features.indices(20)
        assert leaf(model).numFeatures == 4
        scored = model.transform(people)
        assert scored.columns == [*people.columns, "rawPrediction", "probability", "prediction"]
        assert chances(kept.load(member.index)[0], people) == chances(model, people)


def test_renamed_features_are_sliced_and_models_saved(people, tmp_path):
    base = DecisionTreeClassifier(maxDepth=1)
    model = fitted(base, people, Subspace(5, 3))
    ensemble, expected = EnsembleModel([model], rule="soft"), chances(model, people)
    for frame, name in ((people, "features"), (people.withColumnsRenamed({"features": "f"}), "f")):
        assert chances(ensemble, frame, params={base.featuresCol: name}) == expected
    copied = model.copy({leaf(model).getParam("thresholds"): [0.0, 1.0]})
    assert (type(copied), copied.uid, leaf(copied).getFeaturesCol()) == (SlicedModel, model.uid, "sparkdl features")
    assert leaf(copied).getThresholds() == [0.0, 1.0]
    PipelineModel([ensemble]).save(str(tmp_path / "model"))
    [again] = PipelineModel.load(str(tmp_path / "model")).stages[0].models
    assert (type(again), again.uid) == (SlicedModel, model.uid)
    grid = [{}, *({base.featuresCol: name} for name in ("features", "copied"))]
    bagging = Bagging(base=base, numModels=1, maxFeatures=4, seed=1)
    rows = people.withColumn("copied", F.col("features")).drop(ROW_ID)
    evaluator = MulticlassClassificationEvaluator()
    assert len({evaluator.evaluate(bagging.fit(rows, given).transform(rows)) for given in grid}) == 1


def test_pipeline_makes_the_features_to_choose_from(people):
    assembler = VectorAssembler(inputCols=["x0", "x1", "x2", "x3"], outputCol="few")
    last = Pipeline(stages=[assembler, LogisticRegression(featuresCol="few", maxIter=2)])
    base = Pipeline(stages=[StandardScaler(inputCol="features", outputCol="scaled"), last])
    model = fitted(base, people, Subspace(0.5, 3))
    assert leaf(model).numFeatures == 2
    assert "sparkdl features" not in model.transform(people).columns
    assert base.getStages()[1].getStages()[1].getFeaturesCol() == "few"


def test_first_row_counts_features_without_metadata(people):
    bare = people.select(ROW_ID, "label", F.udf(lambda v: v, "double")("x0").alias("x0"), "features")
    model = fitted(DecisionTreeClassifier(maxDepth=2), bare.withMetadata("features", {}), Subspace(3, 3))
    assert model.stages[0].getIndices() == Subspace(3, 3).indices(20)


@pytest.mark.parametrize(
    ("base", "names", "message"),
    [
        (lambda: Weightless(1), ["features"], "Weightless has no featuresCol"),
        (lambda: LogisticRegression(featuresCol="x0"), ["x0"], "column 'x0' has type double; expected an ML vector"),
        (lambda: LogisticRegression(featuresCol="gone"), ["x0"], "there is no column 'gone'"),
    ],
)
def test_features_that_cannot_be_sliced_raise(base, names, message, people):
    rows = people.select(ROW_ID, "label", *names)
    with pytest.raises(InvalidInput, match=f"member 4: .*{message}"):
        fit_on_driver([Member(4, base(), features=Subspace(2, 0))], rows, Plan())


def test_features_of_a_pytorch_base_are_masked(people, tmp_path):
    base = TorchClassifier(model=nets.scores, inputCols=["features"], strategy=ParallelSGD(), epochs=1)
    first = people.select(ROW_ID, "id", "label", F.array("x0", "x1", "x2").alias("features")).limit(200)
    model = fitted(base, first, Subspace(2, 6))
    assert model.module().seen_0.nonzero().flatten().tolist() == Subspace(2, 6).indices(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.save(str(tmp_path / "model"))
    assert chances(TorchModel.load(str(tmp_path / "model")), first) == chances(model, first)


def flat(inputs, target):
    """A collate function that makes one input of two."""
    return (inputs[0].flatten(1),), target


def test_shapes_of_inputs(spark):
    arrays = F.array(F.lit(1.0), F.lit(2.0)).alias("array")
    image = F.array(F.array(F.lit(1.0)), F.array(F.lit(2.0)), F.array(F.lit(3.0))).alias("image")
    shaped = spark.range(3).select(F.col("id").cast("int"), F.lit(0.5).cast("float").alias("number"), arrays, image)
    base = TorchClassifier(inputCols=["number", "image", "id"])
    assert input_shapes(base, shaped) == [([], "float32"), ([3, 1], "float32"), ([], "int64")]
    wide = base.copy().setPrecision("fp64").setColumnSpecs([InputColumn("image", shape=(1, 3))])
    assert input_shapes(wide, shaped) == [([], "float64"), ([1, 3], "float64"), ([], "int64")]
    assert input_shapes(TorchClassifier(inputCols=["image", "id"], collate=flat), shaped) == [([3], "float32")]
    ragged = TorchClassifier(inputCols=["array"], columnSpecs=[InputColumn("array", ragged="padded")])
    with pytest.raises(InvalidInput, match="input 'array' has rows of several lengths"):
        input_shapes(ragged, shaped)
    with pytest.raises(InvalidInput, match="there are no rows to train on"):
        input_shapes(TorchClassifier(inputCols=["array"]), shaped.limit(0))
