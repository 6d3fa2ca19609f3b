"""Events of workers: recorded, sent to the driver, logged, timed and shown."""
