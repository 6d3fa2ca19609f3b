"""The command line: ``sparkdl train``, ``sparkdl predict`` and other commands, each also a job for spark-submit."""
