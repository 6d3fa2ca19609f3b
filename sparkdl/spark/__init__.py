"""Gangs and rounds on a Spark cluster.

``SparkCluster`` (cluster.py) runs a gang as one barrier job, with a worker in each task (barrier.py). Rounds are
ordinary tasks (task_runner.py). What depends on the kind of session, such as calls into the JVM, is in session/.
"""
