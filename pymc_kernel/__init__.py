"""Monte Carlo with reproducing kernels for PyMC: likelihoods with no gradient, with noise, or only simulated."""

import lazy_loader

__version__ = "0.1.0"

# Names are loaded when they are first used: Numba takes longer to import than all else here together, and
# PyTensor itself puts that off until a model is compiled. ``__init__.pyi`` says where each is.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
