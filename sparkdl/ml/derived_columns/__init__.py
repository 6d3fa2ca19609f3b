"""Columns that a fit derives from others: validation rows of ``validationFraction``, weights of ``classWeights``."""
