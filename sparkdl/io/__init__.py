"""Files on any filesystem, serialization, weights, pickling, threads, redaction of secrets."""
