"""Public names, each where it is defined: read by type checkers, and by ``__init__`` at the first use of a name."""

from . import density as density
from . import embeddings as embeddings
from . import emulation as emulation
from . import kernels as kernels
from . import likelihood_free as likelihood_free
from . import scores as scores
from . import smc as smc
from . import stein as stein
from .plugin.blocks.learned import LearnedLikelihood as LearnedLikelihood
from .plugin.blocks.likelihoods import EstimatedLikelihood as EstimatedLikelihood
from .plugin.blocks.simulators import KernelABC as KernelABC
from .plugin.blocks.simulators import SyntheticLikelihood as SyntheticLikelihood
from .plugin.emulation.emulate import black_boxes as black_boxes
from .plugin.emulation.emulate import emulate as emulate
from .plugin.emulation.emulation import Emulation as Emulation
from .plugin.emulation.exact_step import EmulatedNUTS as EmulatedNUTS
from .plugin.model.unconstrained import unconstrained_draws as unconstrained_draws
from .plugin.reports.density_plot import plot_density as plot_density
from .plugin.reports.diagnostics import diagnose as diagnose
from .plugin.reports.diagnostics import ksd_test as ksd_test
from .plugin.reports.diagnostics import summary as summary
from .plugin.reports.plots import plot_calibration as plot_calibration
from .plugin.reports.plots import plot_score as plot_score
from .plugin.reports.plots import plot_smc as plot_smc
from .plugin.reports.stein_plots import plot_ksd as plot_ksd
from .plugin.reports.stein_plots import plot_stein_thin as plot_stein_thin
from .plugin.reports.stein_uses import expectation as expectation
from .plugin.reports.stein_uses import mmd_test as mmd_test
from .plugin.reports.stein_uses import stein_thin as stein_thin
from .plugin.samplers.pooled import sample_khmc as sample_khmc
from .plugin.samplers.population import sample_pmc as sample_pmc
from .plugin.samplers.smc import ASMC as ASMC
from .plugin.samplers.smc import KASMC as KASMC
from .plugin.samplers.smc import KernelHMCSMC as KernelHMCSMC
from .plugin.samplers.smc import sample_smc as sample_smc
from .plugin.samplers.step_methods import KAMH as KAMH
from .plugin.samplers.step_methods import AdaptiveMetropolis as AdaptiveMetropolis
from .plugin.samplers.step_methods import KernelHMC as KernelHMC
from .plugin.samplers.surrogate import sample_surrogate as sample_surrogate
from .plugin.simulation.features import LearnedFeatures as LearnedFeatures
from .plugin.simulation.kbr import sample_kbr as sample_kbr
from .plugin.simulation.likelihood_free import sample_likelihood_free as sample_likelihood_free
from .plugin.simulation.rejection import sample_abc as sample_abc
from .plugin.simulation.simulate import simulate as simulate

__version__: str
