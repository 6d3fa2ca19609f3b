"""Parts of the layout ``Sharded``: units, their exchanges, and the module of slices."""
