"""Verifies an installation on a cluster before any fit: ``diagnosis.py`` runs the checks.

The driver reads the settings and slots. One ordinary task per slot examines its executor. The tasks of a barrier job
connect to each other, and a gang sums a tensor.
"""
