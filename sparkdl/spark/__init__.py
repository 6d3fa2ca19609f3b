"""Gangs on a Spark cluster: one barrier job over a DataFrame's partitions.

columns.py     what the JVM selects and casts before a row leaves it
resources.py   what the cluster can supply, and what a job is waiting for; every call into the JVM is here
barrier.py     a member inside its barrier task
cluster.py     SparkCluster
"""
