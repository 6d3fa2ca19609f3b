"""Parameter servers: workers, or one worker of each host, host shards of the weights, and workers push gradients."""
