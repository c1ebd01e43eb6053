"""Simulations of a model, and posteriors from them alone."""
