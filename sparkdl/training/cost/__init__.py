"""The seconds and bytes that strategies cost."""
