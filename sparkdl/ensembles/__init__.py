"""Ensembles of models, as pyspark.ml estimators over any base estimator.

    Bagging     the same base on bootstrap samples; a vote or a mean                  bagging.py
    Boosting    each member corrects the members before it; a weighted vote or sum    boosting/
    Stacking    a meta model learns from out-of-fold predictions of several bases     stacking.py
    BestOf      cross-validation chooses one of several candidates                    best_of.py

Each ensemble lists its members as ``Member`` objects, an estimator and its rows. ``fit_members`` trains PyTorch bases
with one worker in Spark tasks, all members in one job, and other bases on the driver, ``parallelism`` at a time. With a
``runDir``, finished members are stored and never trained again. A member's rows depend on its seed and the row ids
alone, never on partitions or task order, so training it again gives bit-identical weights.
"""
