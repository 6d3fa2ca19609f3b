"""Ensembles: many models in place of one, as pyspark.ml estimators over any base estimator.

    Bagging     the same base on rows that are drawn anew for each member; a vote, or a mean        bagging.py
    Boosting    one member after the other, each on what those before it got wrong; a sum           boosting.py
    Stacking    several bases, and a model that learns from what they predict of rows unseen        stacking.py
    BestOf      several candidates, of which cross-validation chooses one                           best_of.py

All four say which models they want, as a list of ``Member``: an estimator, and which rows it is given. ``fit_members``
trains them. A PyTorch base of one worker trains in an ordinary Spark task, all members in one job, and every task
streams the packed rows to a disk of its executor (``member_job.py``). Any other base is fitted by the driver,
``parallelism`` fits at a time (``member_fits.py``). In either case a member that is finished is kept under the
``runDir`` and never trained again (``kept.py``).

Which rows a member is given depends on its seed and the rows' ids alone (``draws.py``), not on partitions, tasks or
their order, so that a member that is trained again has the same bits.
"""
