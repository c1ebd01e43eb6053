"""Monte Carlo with reproducing kernels for PyMC: likelihoods with no gradient, with noise, or only simulated."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymc_kernel import density, embeddings, kernels, likelihood_free, scores, smc, stein
    from pymc_kernel.plugin.density_plot import plot_density
    from pymc_kernel.plugin.diagnostics import diagnose, ksd, ksd_test, summary
    from pymc_kernel.plugin.features import LearnedFeatures
    from pymc_kernel.plugin.kbr import sample_kbr
    from pymc_kernel.plugin.likelihoods import EstimatedLikelihood
    from pymc_kernel.plugin.model_functions import unconstrained_draws
    from pymc_kernel.plugin.plots import plot_calibration, plot_score, plot_smc
    from pymc_kernel.plugin.pooled import sample_khmc
    from pymc_kernel.plugin.population import sample_pmc
    from pymc_kernel.plugin.rejection import sample_abc
    from pymc_kernel.plugin.simulate import simulate
    from pymc_kernel.plugin.simulators import KernelABC, MMDLikelihood, SyntheticLikelihood
    from pymc_kernel.plugin.smc import ASMC, KASMC, RWSMC, KernelHMCSMC, sample_smc, smc_stats
    from pymc_kernel.plugin.stein_plots import plot_ksd, plot_ksd_evolution, plot_stein_thin
    from pymc_kernel.plugin.stein_uses import expectation, mmd_test, stein_thin
    from pymc_kernel.plugin.step_methods import KAMH, AdaptiveMetropolis, KernelHMC, register_step_methods

__all__ = [
    "ASMC",
    "KAMH",
    "KASMC",
    "RWSMC",
    "AdaptiveMetropolis",
    "EstimatedLikelihood",
    "KernelABC",
    "KernelHMC",
    "KernelHMCSMC",
    "LearnedFeatures",
    "MMDLikelihood",
    "SyntheticLikelihood",
    "density",
    "diagnose",
    "embeddings",
    "expectation",
    "kernels",
    "ksd",
    "ksd_test",
    "likelihood_free",
    "mmd_test",
    "plot_calibration",
    "plot_density",
    "plot_ksd",
    "plot_ksd_evolution",
    "plot_score",
    "plot_smc",
    "plot_stein_thin",
    "register_step_methods",
    "sample_abc",
    "sample_kbr",
    "sample_khmc",
    "sample_pmc",
    "sample_smc",
    "scores",
    "simulate",
    "smc",
    "smc_stats",
    "stein",
    "stein_thin",
    "summary",
    "unconstrained_draws",
]

__version__ = "0.1.0.dev0"

# Names are loaded when they are first used: Numba takes longer to import than all else here together, and
# PyTensor itself puts that off until a model is compiled.
_WHERE = {
    "KAMH": "pymc_kernel.plugin.step_methods",
    "AdaptiveMetropolis": "pymc_kernel.plugin.step_methods",
    "KernelHMC": "pymc_kernel.plugin.step_methods",
    "EstimatedLikelihood": "pymc_kernel.plugin.likelihoods",
    "register_step_methods": "pymc_kernel.plugin.step_methods",
    **dict.fromkeys(
        ("diagnose", "ksd", "ksd_test", "summary"),
        "pymc_kernel.plugin.diagnostics",
    ),
    **dict.fromkeys(("expectation", "mmd_test", "stein_thin"), "pymc_kernel.plugin.stein_uses"),
    **dict.fromkeys(("plot_calibration", "plot_score", "plot_smc"), "pymc_kernel.plugin.plots"),
    **dict.fromkeys(("plot_ksd", "plot_ksd_evolution", "plot_stein_thin"), "pymc_kernel.plugin.stein_plots"),
    "plot_density": "pymc_kernel.plugin.density_plot",
    **dict.fromkeys(
        ("ASMC", "KASMC", "KernelHMCSMC", "RWSMC", "sample_smc", "smc_stats"),
        "pymc_kernel.plugin.smc",
    ),
    "sample_pmc": "pymc_kernel.plugin.population",
    "LearnedFeatures": "pymc_kernel.plugin.features",
    **dict.fromkeys(("KernelABC", "MMDLikelihood", "SyntheticLikelihood"), "pymc_kernel.plugin.simulators"),
    "sample_abc": "pymc_kernel.plugin.rejection",
    "sample_kbr": "pymc_kernel.plugin.kbr",
    "simulate": "pymc_kernel.plugin.simulate",
    "sample_khmc": "pymc_kernel.plugin.pooled",
    "unconstrained_draws": "pymc_kernel.plugin.model_functions",
}


def __getattr__(name):
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    elif name in __all__:
        value = import_module(f"pymc_kernel.{name}")
    else:
        raise AttributeError(f"module 'pymc_kernel' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
