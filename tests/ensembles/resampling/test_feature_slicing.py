"""Bases that see some of the features: vectors that are sliced, PyTorch models that are masked."""

from __future__ import annotations

import warnings

import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import DecisionTreeClassifier, LogisticRegression, RandomForestClassifier
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as F

from sparkdl import TorchClassifier, TorchModel
from sparkdl.data.columns import InputColumn
from sparkdl.ensembles.bagging import Bagging
from sparkdl.ensembles.base_learner import leaf
from sparkdl.ensembles.members.driver_fits import fit_on_driver
from sparkdl.ensembles.members.member import Member, Plan, Rows
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.resampling.feature_slicing import SlicedModel, input_shapes
from sparkdl.ensembles.resampling.subspace import Subspace
from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.spark.columns import ROW_ID
from tests.ensembles.counting import Weightless
from tests.ml import nets

pytestmark = pytest.mark.slow


def test_a_base_sees_some_of_the_features_and_its_model_is_given_all(people, tmp_path):
    members = [
        Member(index, RandomForestClassifier(numTrees=2, maxDepth=3, seed=1), features=Subspace("sqrt", index))
        for index in range(2)
    ]
    kept = MemberStore(str(tmp_path))
    kept.begin({})
    found = fit_on_driver(members, people, Plan(kept, parallelism=2))
    for member, model, again in zip(members, found.models, [kept.load(0), kept.load(1)], strict=True):
        assert isinstance(model, PipelineModel)
        assert model.stages[0].getIndices() == member.features.indices(20)
        assert leaf(model).numFeatures == 4
        scored = model.transform(people.frame)
        assert scored.columns == [*people.frame.columns, "rawPrediction", "probability", "prediction"]
        assert again.transform(people.frame).select("probability").collect() == scored.select("probability").collect()


def test_other_features_are_sliced_like_those_that_were_trained_on(people, tmp_path):
    base = DecisionTreeClassifier(maxDepth=3)
    [model] = fit_on_driver([Member(0, base, features=Subspace(5, 3))], people, Plan()).models
    other = people.frame.withColumnsRenamed({"features": "renamed"})

    def chances(frame, **values):
        made = EnsembleModel([model], rule="soft")
        given = {base.getParam(name): value for name, value in values.items()}
        return [tuple(row) for row in made.transform(frame, given).orderBy("id").select("probability").collect()]

    expected = chances(people.frame)
    assert chances(people.frame, featuresCol="features") == expected
    assert chances(other, featuresCol="renamed") == expected
    copied = model.copy({leaf(model).getParam("thresholds"): [0.0, 1.0]})
    assert (type(copied), copied.uid, leaf(copied).getFeaturesCol()) == (SlicedModel, model.uid, "sparkdl features")
    assert leaf(copied).getThresholds() == [0.0, 1.0]
    PipelineModel([model]).save(str(tmp_path / "model"))
    assert type(PipelineModel.load(str(tmp_path / "model")).stages[0]) is SlicedModel
    EnsembleModel([model], rule="soft").save(str(tmp_path / "ensemble"))
    [again] = EnsembleModel.load(str(tmp_path / "ensemble")).models
    assert (type(again), again.uid) == (SlicedModel, model.uid)


def test_a_search_over_the_column_of_features(people):
    tree = DecisionTreeClassifier(maxDepth=2)
    frame = people.frame.withColumn("copied", F.col("features"))
    grid = ParamGridBuilder().addGrid(tree.featuresCol, ["features", "copied"]).build()
    search = CrossValidator(
        estimator=Bagging(base=tree, numModels=1, maxFeatures=4, seed=1),
        estimatorParamMaps=[{}, *grid],
        evaluator=MulticlassClassificationEvaluator(),
        numFolds=2,
        seed=1,
    )
    assert len(set(search.fit(frame.drop(ROW_ID)).avgMetrics)) == 1


def test_a_pipeline_makes_the_features_of_which_some_are_taken(people):
    assembler = VectorAssembler(inputCols=["x0", "x1", "x2", "x3"], outputCol="few")
    base = Pipeline(
        stages=[
            StandardScaler(inputCol="features", outputCol="scaled"),
            Pipeline(stages=[assembler, LogisticRegression(featuresCol="few", maxIter=2)]),
        ]
    )
    [model] = fit_on_driver([Member(0, base, features=Subspace(0.5, 3))], people, Plan()).models
    assert leaf(model).numFeatures == 2
    assert "sparkdl features" not in model.transform(people.frame).columns
    assert base.getStages()[1].getStages()[1].getFeaturesCol() == "few"


def test_the_number_of_features_is_that_of_the_first_row_where_nothing_says_it(people):
    bare = people.frame.select(ROW_ID, "label", F.udf(lambda v: v, "double")("x0").alias("x0"), "features")
    bare = bare.withMetadata("features", {})
    base = DecisionTreeClassifier(maxDepth=2)
    [model] = fit_on_driver([Member(0, base, features=Subspace(3, 3))], Rows(bare, ROW_ID), Plan()).models
    assert model.stages[0].getIndices() == Subspace(3, 3).indices(20)


@pytest.mark.parametrize(
    ("base", "names", "said"),
    [
        (lambda: Weightless(1), ["features"], "Weightless has no featuresCol"),
        (lambda: LogisticRegression(featuresCol="x0"), ["x0"], "column 'x0' has type double; expected an ML vector"),
        (lambda: LogisticRegression(featuresCol="gone"), ["x0"], "there is no column 'gone'"),
        (LogisticRegression, ["features"], "the data has 20 features"),
    ],
)
def test_features_that_cannot_be_taken_are_refused(base, names, said, people):
    rows = Rows(people.frame.select(ROW_ID, "label", *names), ROW_ID)
    with pytest.raises(InvalidInput, match=f"member 4: .*{said}"):
        fit_on_driver([Member(4, base(), features=Subspace(21, 0))], rows, Plan())


def test_features_of_a_pytorch_base_are_masked(people, tmp_path):
    base = TorchClassifier(model=nets.scores, inputCols=["features"], strategy=ParallelSGD(), epochs=1)
    first = people.frame.select(ROW_ID, "label", F.array("x0", "x1", "x2").alias("features")).limit(200)
    subspace = Subspace(2, 6)
    [model] = fit_on_driver([Member(0, base, features=subspace)], Rows(first, ROW_ID), Plan()).models
    assert isinstance(model, TorchModel)
    assert model.module().seen_0.nonzero().flatten().tolist() == subspace.indices(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.save(str(tmp_path / "model"))
    again = TorchModel.load(str(tmp_path / "model"))
    one, other = (each.transform(first).select("probability").collect() for each in (model, again))
    assert one == other


@pytest.fixture
def shaped(spark):
    arrays = F.array(F.lit(1.0), F.lit(2.0)).alias("array")
    image = F.array(F.array(F.lit(1.0)), F.array(F.lit(2.0)), F.array(F.lit(3.0))).alias("image")
    return spark.range(3).select(F.col("id").cast("int"), F.lit(0.5).cast("float").alias("number"), arrays, image)


def test_the_shapes_of_inputs(shaped):
    base = TorchClassifier(inputCols=["number", "image", "id"])
    assert input_shapes(base, shaped) == [([], "float32"), ([3, 1], "float32"), ([], "int64")]
    wide = base.copy().setPrecision("fp64").setColumnSpecs([InputColumn("image", shape=(1, 3))])
    assert input_shapes(wide, shaped) == [([], "float64"), ([1, 3], "float64"), ([], "int64")]


def flat(inputs, target):
    """A collate function that makes one input of two."""
    return (inputs[0].flatten(1),), target


def test_the_shapes_are_those_that_the_model_is_given(shaped):
    assert input_shapes(TorchClassifier(inputCols=["image", "id"], collate=flat), shaped) == [([3], "float32")]


def test_inputs_without_one_shape_are_refused(shaped):
    ragged = TorchClassifier(inputCols=["array"], columnSpecs=[InputColumn("array", ragged="padded")])
    with pytest.raises(InvalidInput, match="input 'array' has rows of several lengths"):
        input_shapes(ragged, shaped)
    with pytest.raises(InvalidInput, match="there are no rows to train on"):
        input_shapes(TorchClassifier(inputCols=["array"]), shaped.limit(0))
