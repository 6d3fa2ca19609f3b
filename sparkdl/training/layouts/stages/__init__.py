"""Parts of the layout ``Pipelined``: cuts of a model, and the schedule over its stages."""
