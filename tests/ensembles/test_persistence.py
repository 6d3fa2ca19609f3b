"""Ensembles on disk: a model with its members, an estimator with its bases, whole or not at all."""

import json
import shutil

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.param import Params

from sparkdl import BestOf, EnsembleModel, InvalidInput, TorchClassifier, TorchModel
from sparkdl.cli import scoring
from sparkdl.ensembles.base_learner import leaf
from sparkdl.io.weights import pack
from sparkdl.ml.persistence.metadata_files import escaped
from tests.ensembles.fakes import VECTORS, member, members, outputs
from tests.ml import nets
from tests.sessions import conf

pytestmark = pytest.mark.slow

HISTORY = [{"member": 0, "loss": 0.5}, {"member": 1, "loss": 0.25}]


def made(**others):
    given = {"rule": "soft", "weights": [0.1, 0.7], "history": HISTORY, "report": {"seconds": 1.5}} | others
    model = EnsembleModel(members(nets.scores, count=2), **given)
    return model.setDisagreementCol("apart").setThresholds([0.1, 0.2, 0.3])


def predictions(model, rows):
    return outputs(model, rows, "prediction")[0].tolist()


def test_loaded_model_equals_the_saved(data, tmp_path):
    model, path = made(numClasses=3), tmp_path / "model"
    model.save(str(path))
    assert {entry.name for entry in path.iterdir()} == {"metadata", "members"}
    loaded = EnsembleModel.load(str(path))
    for name in ("uid", "rule", "weights", "intercept", "numClasses", "history", "report"):
        assert getattr(loaded, name) == getattr(model, name)
    assert (loaded.getDisagreementCol(), loaded.getThresholds()) == ("apart", [0.1, 0.2, 0.3])
    assert [one.uid for one in loaded.models] == [one.uid for one in model.models]
    assert predictions(loaded, data) == predictions(model, data)
    (part,) = path.glob("metadata/part-*")
    assert json.loads(part.read_text())["class"] == "sparkdl.ensembles.model.EnsembleModel"


def test_members_of_any_library_are_saved_in_a_pipeline(data, tmp_path):
    fitted = LogisticRegression(maxIter=2).fit(data)
    inner = EnsembleModel([member(nets.column)], rule="soft")
    model = PipelineModel([EnsembleModel([fitted, PipelineModel([fitted]), inner, member(nets.column)], rule="hard")])
    path = tmp_path / "all [1]{a,b}*?%20#\u00e9"
    model.save(str(path))
    loaded = PipelineModel.load(escaped(str(path)))  # Spark's reader takes a path for a pattern
    kinds = [type(one).__name__ for one in loaded.stages[0].models]
    assert kinds == ["LogisticRegressionModel", "PipelineModel", "EnsembleModel", "TorchModel"]
    assert predictions(loaded, data) == predictions(model, data)
    (ensemble,) = path.glob("stages/*")
    assert predictions(EnsembleModel.load(ensemble), data) == predictions(model, data)
    assert type(scoring.load(data.sparkSession, str(path))) is PipelineModel
    (inner,) = ensemble.glob("members/00001/stages/*")
    (part,) = inner.glob("metadata/part-*")
    harmless = part.read_bytes()
    forge(inner, "org.apache.spark.ml.classification.LogisticRegressionModel", "forged.models.Model")
    part.rename(part.with_name("a"))  # Spark reads files of any name
    part.write_bytes(harmless)
    with pytest.raises(InvalidInput, match=r"names forged\.models\.Model, .*modules=\['tests'.*, 'forged\.models'\]"):
        EnsembleModel.load(ensemble)
    names = '"stageUids":["'
    for forged in ('"stageUids":["x/../../', f'"estimatorParamMaps":[[{{"isJson":false,"value":".."}}]],{names}'):
        forge(ensemble / "members/00001", names, forged)
        with pytest.raises(InvalidInput, match=r"00001/metadata names stages outside its folder"):
            EnsembleModel.load(ensemble)
        names = forged


def absolute(output, target):
    return (output - target).abs()


def test_loss_of_loaded_members_needs_the_trust_of_their_load(data, tmp_path):
    model, path = EnsembleModel([member(nets.Autoencoder, "estimator")], rule="mean"), str(tmp_path / "model")
    model.models[0].setLabelCol("x").evaluated = {"loss": absolute, "metrics": {}}
    model.save(path)
    assert EnsembleModel.load(path).evaluate(data) == model.evaluate(data)
    with conf(data.sparkSession, "spark.sparkdl.modules", "tests.ml"):
        loaded = EnsembleModel.load(path)
    with pytest.raises(InvalidInput, match=r"names tests\.ensembles\.test_persistence"):
        loaded.evaluate(data)


def in_pipeline(last, kind=PipelineModel):
    """A stage of this library in a pipeline within a pipeline."""
    assembler = VectorAssembler(inputCols=["label"], outputCol="assembled")
    return kind(stages=[kind(stages=[assembler]), kind(stages=[assembler.copy({assembler.outputCol: "again"}), last])])


def test_pickled_members_need_trust_at_any_depth(data, tmp_path):
    module = nets.Line()
    pickled = TorchModel(factory=module, weights=pack(module), kind="regressor").setInputCols(["x"])
    inner = EnsembleModel([pickled], rule="mean")
    for number, (model, place) in enumerate(
        [(inner, "members/00000"), (EnsembleModel([in_pipeline(pickled), inner], rule="sum"), r"stages/1_\w+")]
    ):
        path = str(tmp_path / str(number))
        with pytest.warns(UserWarning, match="saved as a pickle"):
            model.save(path)
        with pytest.raises(InvalidInput, match=rf"{place} has pickled parts, .*trust=True.*spark.sparkdl.trust"):
            EnsembleModel.load(path)
        loaded = EnsembleModel.load(path, trust=True)
        assert predictions(loaded, data) == predictions(model, data)


def test_exported_members_give_the_same_predictions(data, tmp_path):
    models = members(lambda: nets.mlp(3, outputs=3), count=2, signature=[([3], "float32")])
    made = EnsembleModel(models, rule="soft").setDisagreementCol("apart")
    made.save(str(tmp_path / "model"))
    assert len(list(tmp_path.glob("model/members/*/program.pt2"))) == 2
    loaded = EnsembleModel.load(str(tmp_path / "model"))
    assert not loaded._scorer(loaded.models, (1.0, 1.0)).module().stacked
    for one, other in zip(*(outputs(model, data, *VECTORS, "apart") for model in (made, loaded)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


class Unwritable(Params):
    """Params without a writer."""


def test_member_without_a_writer_raises(spark, tmp_path):
    model = made()
    model.models[1] = Unwritable()
    with pytest.raises(InvalidInput, match=r"members/00001 is a Unwritable, which has no write\(\); expected a class"):
        model.save(str(tmp_path / "model"))
    assert not [*tmp_path.iterdir()]


def forge(folder, old, new):
    """Replace a text in the metadata, and delete its checksum."""
    (part,) = folder.glob("metadata/part-*")
    part.with_name(f".{part.name}.crc").unlink(missing_ok=True)
    part.write_text(part.read_text().replace(old, new))


def test_lost_or_forged_parts_raise(spark, tmp_path):
    path = tmp_path / "model"
    made().save(str(path))
    forge(path / "members/00001", "sparkdl.ml.model.TorchModel", "shutil.rmtree")
    with pytest.raises(InvalidInput, match=r"names shutil\.rmtree; expected nothing of Python's own"):
        EnsembleModel.load(str(path))
    shutil.rmtree(path / "members/00001")
    with pytest.raises(InvalidInput, match="damaged: members/00001 cannot be loaded"):
        EnsembleModel.load(str(path))
    forge(path, '"rule"', '"role"')
    with pytest.raises(InvalidInput, match="model is damaged: KeyError: 'rule'"):
        EnsembleModel.load(str(path))


def test_estimator_is_saved_with_its_bases_and_needs_trust(spark, tmp_path):
    candidates = [
        TorchClassifier(model=nets.scores, epochs=3),
        LogisticRegression(regParam=0.25),
        Pipeline(stages=[TorchClassifier(model=nets.digits)]),
    ]
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    ensemble, path = BestOf(candidates=candidates, evaluator=evaluator, seed=7, runDir="here"), tmp_path / "best"
    ensemble.save(str(path))
    assert {entry.name for entry in path.iterdir()} == {"metadata", "params"}
    loaded = BestOf.load(str(path))
    assert (loaded.uid, loaded.getSeed(), loaded.getRunDir()) == (ensemble.uid, 7, "here")
    assert loaded.getEvaluator().getMetricName() == "accuracy"
    network, other, pipeline = loaded.getCandidates()
    assert (network.uid, network.getModel(), network.getEpochs()) == (candidates[0].uid, nets.scores, 3)
    assert (other.getRegParam(), pipeline.getStages()[0].getModel()) == (0.25, nets.digits)
    base = in_pipeline(TorchClassifier(model=lambda: nets.mlp(3, outputs=3)), Pipeline)
    ensemble.setCandidates([base]).write().overwrite().save(str(path))
    with pytest.raises(InvalidInput, match=r"has pickled parts, .*\['model'\]"):
        BestOf.load(str(path))
    (again,) = BestOf.read().trust().load(str(path)).getCandidates()
    assert (type(again), again.uid) == (Pipeline, base.uid)
    assert isinstance(leaf(again).getModel()(), nets.nn.Module)
