"""Workers' events: recorded, sent to the driver, kept, timed and shown."""
