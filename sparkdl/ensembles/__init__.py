"""Ensembles of models, as pyspark.ml estimators over any base estimator.

    Bagging     the same base on bootstrap samples; a vote or a mean                  bagging.py
    Boosting    each member corrects the members before it; a weighted vote or sum    boosting/
    Stacking    a meta model learns from out-of-fold predictions of several bases     stacking.py
    BestOf      cross-validation chooses one of several candidates                    best_of.py

Each ensemble lists its members as ``Member`` objects, an estimator and its rows. ``fit_members`` trains PyTorch bases
with one worker in Spark tasks, and all others on the driver. With a ``runDir``, finished members are stored.
"""
