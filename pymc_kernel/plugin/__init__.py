"""The only floor that knows PyMC, PyTensor, xarray and ArviZ."""
