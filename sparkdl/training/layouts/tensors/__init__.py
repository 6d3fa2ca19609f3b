"""Parts of the layout ``TensorParallel``: plans, and the operators of partners."""
