"""Monte Carlo with reproducing kernels for PyMC: likelihoods with no gradient, with noise, or only simulated."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymc_kernel import density, embeddings, kernels, likelihood_free, rounds, scores, smc, stein
    from pymc_kernel.plugin.blocks.likelihoods import EstimatedLikelihood
    from pymc_kernel.plugin.blocks.simulators import KernelABC, MMDLikelihood, SyntheticLikelihood
    from pymc_kernel.plugin.model.unconstrained import unconstrained_draws
    from pymc_kernel.plugin.reports.density_plot import plot_density
    from pymc_kernel.plugin.reports.diagnostics import diagnose, ksd, ksd_test, summary
    from pymc_kernel.plugin.reports.plots import plot_calibration, plot_score, plot_smc
    from pymc_kernel.plugin.reports.provenance import provenance
    from pymc_kernel.plugin.reports.stein_plots import plot_ksd, plot_ksd_evolution, plot_stein_thin
    from pymc_kernel.plugin.reports.stein_uses import expectation, mmd_test, stein_thin
    from pymc_kernel.plugin.samplers.pooled import sample_khmc
    from pymc_kernel.plugin.samplers.population import sample_pmc
    from pymc_kernel.plugin.samplers.smc import sample_smc, smc_stats
    from pymc_kernel.plugin.samplers.smc_kernels import ASMC, KASMC, RWSMC, KernelHMCSMC
    from pymc_kernel.plugin.samplers.step_methods import KAMH, AdaptiveMetropolis, KernelHMC, register_step_methods
    from pymc_kernel.plugin.simulation.features import LearnedFeatures
    from pymc_kernel.plugin.simulation.kbr import sample_kbr
    from pymc_kernel.plugin.simulation.rejection import sample_abc
    from pymc_kernel.plugin.simulation.rounds import sample_likelihood_free
    from pymc_kernel.plugin.simulation.simulate import simulate

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
    "provenance",
    "register_step_methods",
    "rounds",
    "sample_abc",
    "sample_kbr",
    "sample_khmc",
    "sample_likelihood_free",
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
    "KAMH": "pymc_kernel.plugin.samplers.step_methods",
    "AdaptiveMetropolis": "pymc_kernel.plugin.samplers.step_methods",
    "KernelHMC": "pymc_kernel.plugin.samplers.step_methods",
    "EstimatedLikelihood": "pymc_kernel.plugin.blocks.likelihoods",
    "register_step_methods": "pymc_kernel.plugin.samplers.step_methods",
    **dict.fromkeys(
        ("diagnose", "ksd", "ksd_test", "summary"),
        "pymc_kernel.plugin.reports.diagnostics",
    ),
    **dict.fromkeys(("expectation", "mmd_test", "stein_thin"), "pymc_kernel.plugin.reports.stein_uses"),
    **dict.fromkeys(("plot_calibration", "plot_score", "plot_smc"), "pymc_kernel.plugin.reports.plots"),
    **dict.fromkeys(("plot_ksd", "plot_ksd_evolution", "plot_stein_thin"), "pymc_kernel.plugin.reports.stein_plots"),
    "plot_density": "pymc_kernel.plugin.reports.density_plot",
    **dict.fromkeys(("ASMC", "KASMC", "KernelHMCSMC", "RWSMC"), "pymc_kernel.plugin.samplers.smc_kernels"),
    **dict.fromkeys(("sample_smc", "smc_stats"), "pymc_kernel.plugin.samplers.smc"),
    "sample_pmc": "pymc_kernel.plugin.samplers.population",
    "LearnedFeatures": "pymc_kernel.plugin.simulation.features",
    **dict.fromkeys(("KernelABC", "MMDLikelihood", "SyntheticLikelihood"), "pymc_kernel.plugin.blocks.simulators"),
    "sample_abc": "pymc_kernel.plugin.simulation.rejection",
    "sample_kbr": "pymc_kernel.plugin.simulation.kbr",
    "sample_likelihood_free": "pymc_kernel.plugin.simulation.rounds",
    "simulate": "pymc_kernel.plugin.simulation.simulate",
    "provenance": "pymc_kernel.plugin.reports.provenance",
    "sample_khmc": "pymc_kernel.plugin.samplers.pooled",
    "unconstrained_draws": "pymc_kernel.plugin.model.unconstrained",
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
