"""The unknown part of a model, found and learned; the rest of the model stays as it is."""
