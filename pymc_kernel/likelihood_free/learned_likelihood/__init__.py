"""The density of a simulator's summaries given its parameters, learned by kernel regression."""

from pymc_kernel.likelihood_free.learned_likelihood.chance import Chance
from pymc_kernel.likelihood_free.learned_likelihood.learned import FittedLikelihood, LearnedLikelihood

__all__ = ["Chance", "FittedLikelihood", "LearnedLikelihood"]
