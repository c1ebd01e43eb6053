"""The samplers as PyMC step methods: adapters between PyMC and ``mcmc``."""

from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pymc as pm
from pymc.stats.convergence import WarningType
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import Competence

from pymc_kernel import scores
from pymc_kernel.kernels import Gaussian, Kernel
from pymc_kernel.mcmc import adaptive_metropolis, kameleon, kernel_hmc
from pymc_kernel.plugin.arguments import Variables
from pymc_kernel.plugin.model.estimated import blocks_of
from pymc_kernel.plugin.samplers.transition_step import RandomWalkStep, TransitionStep

_ESTIMATED: WeakSet[pm.Model] = WeakSet()  # models with a likelihood that is only estimated
_LEAST_TUNING = 100  # tuning draws of kernel HMC: with fewer there is one fit to a few points, or none

_SHARED_PARAMETERS = """
    target_accept : float or "auto"
        Acceptance rate that the scale is tuned to. "auto" is .234, or for an estimated likelihood the best rate under
        its noise, which is measured while tuning: .1 for a standard deviation of 1.5.
    adaptation : {"tuning", "vanishing"}
        Whether learning ends with the tuning phase, after which the chain is an ordinary Metropolis-Hastings
        chain (default), or goes on with ever smaller steps. With ``tune=0`` and the default nothing is learned.
    model, rng, initial_point, compile_kwargs, blocked
        As in every step of PyMC; ``pm.sample`` fills in what it needs. One block by default.
"""

_SHARED_NOTES = """
    One evaluation of the log density a draw at most; while tuning on an estimated likelihood one more in ten, at the
    point where the chain is, to measure the noise. For an estimated likelihood the estimate that was accepted is
    kept, so the posterior is exact; all free variables must then be in the one block.

    A chain that tunes for 200 draws or more begins at PyMC's initial point or at one of twenty draws from the prior,
    with probability in proportion to their likelihood, and the first proposals have the prior's scales. With
    ``initvals``, and with priors that cannot be drawn from, as ``pm.Flat``, chains begin as PyMC's do. Another tenth of
    the tuning draws may be spent on climbs from these draws towards other modes. A warning at the end of a chain names
    a point as likely as its draws that it never came near.

    Statistics of each draw, in ``sample_stats``: ``accept`` (acceptance probability), ``moved`` (1 if the proposal was
    accepted), ``proposal_scale``, ``lp`` (log density at the draw; an estimated one as accepted), ``stuck_for``
    (rejections in a row up to this draw), ``evaluations`` (of the log density, normally 1). With an estimated
    likelihood ``y`` also ``failed_share_y`` (of the simulations for the proposal, or of its estimates) and
    ``log_estimate_variance`` (measured while tuning). :func:`diagnose` sums them up. A chain that is stuck after
    tuning is reported once, with the variance of the log estimate if the density is estimated.
"""


class AdaptiveMetropolis(RandomWalkStep):
    """Random-walk Metropolis with a learned covariance and a learned scale.

    Parameters
    ----------
    vars : list of variables, optional
        All continuous free variables of the model by default; ``pm.sample`` finds steps for discrete ones.
    covariance : array_like (d, d), optional
        Covariance of the proposal, on the unconstrained scale: its initial value, or the fixed one.
    learn_covariance, learn_scale : bool
        What is adapted. With both False this is plain Metropolis.
    scale : float, optional
        Factor on the proposal's standard deviation, initially 2.38 / sqrt(d).
    {parameters}

    Notes
    -----
    {notes}
    Source: Haario, Saksman and Tamminen (2001); Andrieu and Thoms (2008). O(d^2) per draw.

    Examples
    --------
    >>> import pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     idata = pm.sample(step=pk.AdaptiveMetropolis(), progressbar=False)  # doctest: +SKIP
    """

    name = "adaptive_metropolis"
    _transition_module = adaptive_metropolis

    def __init__(
        self,
        vars: Variables = None,
        *,
        covariance: npt.ArrayLike | None = None,
        learn_covariance: bool = True,
        scale: float | None = None,
        learn_scale: bool = True,
        target_accept: float | str = "auto",
        adaptation: str = "tuning",
        **of_every_step: Any,
    ) -> None:
        config = adaptive_metropolis.Config(covariance, learn_covariance, scale, learn_scale, target_accept)
        super().__init__(vars, config, adaptation, **of_every_step)

    def _adapt(self, state, info):
        return adaptive_metropolis.adapt(state, info, self.config)


class KAMH(RandomWalkStep):
    """Kernel adaptive Metropolis-Hastings: a random walk that follows the local shape of the posterior.

    Parameters
    ----------
    vars : list of variables, optional
        All continuous free variables of the model by default; ``pm.sample`` finds steps for discrete ones.
    kernel : pymc_kernel.kernels.Kernel, optional
        Any differentiable kernel; ``Gaussian("median")`` by default.
    num_basis : int
        Number n of past points of the chain that shape the proposal; a draw costs O(n d^2).
    isotropic_share : float
        Share of the isotropic part in the variance of the proposal, in (0, 1). Far from the chain's past the proposal
        is this part alone.
    gamma : float, optional
        A fixed standard deviation of the isotropic part instead, in whitened units, as in the thesis. It has to suit
        the target: with a wrong one, chains have lingered in the tails.
    scale : float, optional
        Of the proposal at the start, in units of the learned spread; 2.38 / sqrt(d) by default.
    learn_scale : bool
        Whether the scale is tuned to ``target_accept``.
    whiten : bool
        Whether the kernel acts in coordinates in which the chain's past has unit covariance.
    {parameters}

    Notes
    -----
    {notes}
    Source: Sejdinovic et al. (2014); Strathmann (2018), chapter 3. The proposal is not symmetric, and its full
    density ratio is used. Memory: ten times ``num_basis`` positions, however long the chain.

    Examples
    --------
    >>> import pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     idata = pm.sample(step=pk.KAMH(), progressbar=False)  # doctest: +SKIP
    """

    name = "kamh"
    _transition_module = kameleon

    def __init__(
        self,
        vars: Variables = None,
        *,
        kernel: Kernel | None = None,
        num_basis: int = 1000,
        isotropic_share: float = 0.5,
        gamma: float | None = None,
        scale: float | None = None,
        learn_scale: bool = True,
        target_accept: float | str = "auto",
        whiten: bool = True,
        adaptation: str = "tuning",
        **of_every_step: Any,
    ) -> None:
        kernel = Gaussian("median") if kernel is None else kernel
        config = kameleon.Config(kernel, num_basis, isotropic_share, gamma, scale, learn_scale, target_accept, whiten)
        super().__init__(vars, config, adaptation, **of_every_step)


_ESTIMATORS = {
    "auto": scores.Values,
    "values": scores.Values,
    "lite": lambda: scores.Lite(num_basis=500),
    "finite": scores.Finite,
    "nystrom": lambda: scores.Nystrom(num_basis=50),
}
#: The warning about a surrogate that was learned and is not used.
DROPPED = (
    "the surrogate is not used: at the end of tuning moves along it were mostly rejected, or went nowhere. The random "
    "walk makes all draws now. Tune longer; or take pk.AdaptiveMetropolis, which spends no time on learning one."
)


class KernelHMC(TransitionStep):
    """Gradient-free Hamiltonian Monte Carlo along a surrogate of the log density, learned while the chain tunes.

    Parameters
    ----------
    vars : list of variables, optional
        All continuous free variables of the model by default; ``pm.sample`` finds steps for discrete ones.
    surrogate : {{"auto", "values", "lite", "finite", "nystrom"}}, or an estimator of ``pymc_kernel.scores``
        What is learned. "values" is kernel regression on the log density at every proposal, rejected ones included; the
        others match scores at the visited points. "auto" is "values", which is better in the benchmarks.
    exploring_share : float
        Least share of random-walk moves once there is a surrogate, in (0, 1]. The share is larger where more surrogate
        moves are rejected or go nowhere, and 1 after tuning if these are more than nine of ten.
    max_steps : int
        Most leapfrog steps in a trajectory; they cost microseconds and no evaluation.
    target_accept : float or "auto"
        Acceptance rate that the random walk's scale is tuned to, as in :class:`KAMH`.
    model, rng, initial_point, compile_kwargs, blocked
        As in every step of PyMC; ``pm.sample`` fills in what it needs. One block by default.

    Notes
    -----
    {notes}
    Further statistics: ``move`` (the kind of move, in words: one of ``pymc_kernel.mcmc.kernel_hmc.MOVES``),
    ``num_steps`` (leapfrog steps), ``energy_error`` (minus the log of the acceptance ratio), ``surrogate_quality``
    (leave-one-out error of the values in units of the log density, or the held-out score-matching loss), ``log_weight``
    (log density minus surrogate at the draw; NaN where the density is estimated or no surrogate is used).

    A surrogate move is a chain of trajectories, each accepted or rejected by the surrogate alone; its end, nearly
    independent of the start, is one proposal. In up to 30 dimensions the surrogate is learned in coordinates in which
    funnels, centered hierarchies, bananas and products are straight. After tuning everything is frozen. Learning takes
    some seconds per chain (O(n^3) for at most 1,000 points, twenty times), so it pays if an evaluation costs more than
    about a millisecond. With ``cores=1`` ``step.surrogate`` is afterwards that of the last chain; for any run,
    ``pk.scores.Values().fit(draws, log_density)`` fits one to unconstrained draws and ``sample_stats["lp"]``.

    Surrogate moves never enter regions where the surrogate is far too low, as in the neck of a funnel. At the last draw
    of a chain a warning says if a part of the posterior is likely to be missing, by the tail of the log weights.

    Source: Strathmann et al. (2015); Strathmann (2018), chapter 4; Rasmussen (2003) for values.

    Examples
    --------
    >>> import pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     idata = pm.sample(step=pk.KernelHMC(), progressbar=False)  # doctest: +SKIP
    """

    name = "kernel_hmc"
    _transition_module = kernel_hmc

    stats_dtypes_shapes = TransitionStep.stats_dtypes_shapes | {
        "move": (f"<U{max(map(len, kernel_hmc.MOVES))}", []),
        "num_steps": (np.int64, []),
        **dict.fromkeys(("energy_error", "surrogate_quality", "log_weight"), (np.float64, [])),
    }

    def __init__(
        self,
        vars: Variables = None,
        *,
        surrogate: Any = "auto",
        exploring_share: float = 0.1,
        max_steps: int = 60,
        target_accept: float | str = "auto",
        **of_every_step: Any,
    ) -> None:
        if isinstance(surrogate, str):
            if surrogate not in _ESTIMATORS:
                raise ValueError(f"surrogate must be one of {', '.join(_ESTIMATORS)}, got {surrogate!r}.")
            surrogate = _ESTIMATORS[surrogate]()
        config = kernel_hmc.Config(surrogate, exploring_share, max_steps, target_accept)
        super().__init__(vars, config, "tuning", **of_every_step)

    @property
    def surrogate(self):
        """The fitted surrogate of the log density on the unconstrained scale, None before there is one."""
        state = self.learned if self.transition is None else self.transition
        return None if state is None or state.fit is None else state.fit.surrogate

    @staticmethod
    def competence(var, has_grad):
        """Return ``IDEAL`` for models with an estimated likelihood of this package; all others are left to PyMC.

        Discrete variables of such a model are claimed, too: the constructor's error says what to do with them.
        """
        in_context = pm.Model.get_context(error_if_none=False)
        known = {in_context} if in_context is not None and blocks_of(in_context) else set()
        is_estimated = any(var is rv for model in known | set(_ESTIMATED) for rv in model.free_RVs)
        return Competence.IDEAL if is_estimated else Competence.INCOMPATIBLE

    def _log_estimate_variance(self, state):
        # A regression on all values measures the noise better than the random walk's few probes.
        noise_sd = None if state.fit is None else getattr(state.fit.learned.surrogate, "noise_sd", None)
        return super()._log_estimate_variance(state.walk) if noise_sd is None else noise_sd**2

    def _problem(self, state) -> str:
        if self.learned is not None or (state.fit is not None and self.num_tune >= _LEAST_TUNING):
            return super()._problem(state)
        return (
            f"{self.num_tune} tuning draws were too few to learn a surrogate that its moves can trust. Tune "
            "for 500 draws or more, or take pk.sample_khmc, whose chains learn one surrogate together."
        )

    def _warning(self, state):
        is_first = self.draw == self.num_tune + 1
        if is_first and not self.tune and self.learned is None and kernel_hmc.is_dropped(state):
            return self._said(WarningType.BAD_PARAMS, DROPPED)
        return super()._warning(state)

    def stop_tuning(self):
        """End the learning, even where there were fewer tuning draws than announced."""
        state = self.transition
        if self.tune and state is not None and state.iteration < self.num_tune:
            self.transition = kernel_hmc.finish(state._replace(iteration=self.num_tune), self.config)
        return super().stop_tuning()

    def _stats(self, state, info):
        of_move = {name: getattr(info, name) for name in ("move", "num_steps", "energy_error", "log_weight")}
        quality = np.nan if state.fit is None else state.fit.learned.quality
        return super()._stats(state, info) | of_move | {"surrogate_quality": quality}


for _step in (AdaptiveMetropolis, KAMH, KernelHMC):
    # With python -OO there are no docstrings.
    _step.__doc__ = (_step.__doc__ or "").format(parameters=_SHARED_PARAMETERS.strip(), notes=_SHARED_NOTES.strip())


def offer_to_estimated_model(model: pm.Model) -> None:
    """Make ``pm.sample`` assign :class:`KernelHMC`, before all other steps, to the variables of this model.

    A copy of the model is recognized only while it is in context.
    """
    _ESTIMATED.add(model.root)
    if KernelHMC not in STEP_METHODS:
        STEP_METHODS.insert(0, KernelHMC)
