"""The PyMC layer: the only part of the package that imports PyMC, PyTensor, xarray and ArviZ."""
