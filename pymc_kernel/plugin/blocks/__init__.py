"""Blocks of a model whose likelihood is estimated or simulated."""
