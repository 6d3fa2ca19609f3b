"""The authenticated connection between processes of a run, and addresses of hosts; imports the errors alone."""
