"""What is minimised and measured: model, loss, optimizer, metrics."""
