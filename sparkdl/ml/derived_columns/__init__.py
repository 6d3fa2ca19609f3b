"""Label columns, and columns that a fit derives: validation rows of ``validationFraction``, ``classWeights``."""
