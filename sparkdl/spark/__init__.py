"""Gangs and rounds on a Spark cluster.

``SparkCluster`` (cluster.py) runs a gang as one barrier job, with a worker in each task (barrier.py). Rounds are
ordinary tasks (tasks.py). All calls into the JVM are in session.py, jvm.py and the runner of tasks.
"""
