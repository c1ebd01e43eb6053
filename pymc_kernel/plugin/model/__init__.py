"""A PyMC model as functions on arrays: log density, forward draws, scores."""
