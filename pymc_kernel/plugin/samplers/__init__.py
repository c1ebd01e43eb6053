"""Samplers of models that have a density, exact or estimated."""
