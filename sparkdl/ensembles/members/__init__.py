"""Training of members on the driver and in tasks; their store and their failures."""
