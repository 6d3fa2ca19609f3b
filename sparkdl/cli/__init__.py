"""The command line: ``sparkdl train``, ``sparkdl predict`` and the other commands, each also a job of spark-submit."""
