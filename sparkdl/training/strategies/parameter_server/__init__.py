"""Parameter servers: every worker hosts a shard of the weights, to which all workers push gradients."""
