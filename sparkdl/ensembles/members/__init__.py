"""Fits of members: on the driver, in tasks, in gangs; their store and their failures."""
