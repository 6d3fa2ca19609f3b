"""Ensembles of models, as pyspark.ml estimators over any base estimator.

    Bagging     the same base on bootstrap samples; a vote or a mean                  bagging.py
    Boosting    each member corrects the members before it; a weighted vote or sum    boosting/
    Stacking    a meta model learns from out-of-fold predictions of several bases     stacking.py
    BestOf      cross-validation chooses one of several candidates                    best_of.py

Each ensemble lists its members as ``Member`` objects: an estimator and its rows. ``fit_members`` trains them. PyTorch
bases with one worker train in Spark tasks, all members in one job (``members/task_fits.py``). The driver fits all
other bases, ``parallelism`` at a time (``members/driver_fits.py``). With a ``runDir``, finished members are stored and
never trained again (``members/store.py``).

A member's rows depend on its seed and the row ids alone (``resampling/bootstrap.py``), never on partitions or task
order. Training a member again therefore gives bit-identical weights.
"""
