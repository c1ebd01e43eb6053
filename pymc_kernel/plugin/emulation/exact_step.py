"""NUTS on an emulated model, corrected by the true one: exact draws for one evaluation each."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from arviz_stats.base import array_stats
from pymc.blocking import RaveledVars
from pymc.step_methods.hmc.nuts import NUTSState
from pymc.step_methods.state import dataclass_state

from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.mcmc.metropolis import metropolis_accept
from pymc_kernel.plugin.emulation.chains import density_and_gradient
from pymc_kernel.plugin.emulation.exact_groups import EmulatedGroups, check_emulated
from pymc_kernel.plugin.model.estimated import estimated_terms
from pymc_kernel.plugin.model.interpreter import STABLE
from pymc_kernel.plugin.model.log_density import compile_log_density

# Both by the text before the table "learned-chains" of RESULTS.md.
_MOST_TRANSITIONS = 10  # with 30 hardly more effective draws
TARGET_ACCEPT = 0.95  # with .8 far fewer, and hundreds of divergences: small steps cost no evaluation


@dataclass_state
class _State(NUTSState):
    correction: Any
    is_placed: bool
    transitions: Any
    tuning_draws: Any


class EmulatedNUTS(pm.NUTS):
    """Exact draws from a model whose black boxes were learned: ``pm.sample(step=pk.EmulatedNUTS(emulated))``.

    A proposal is a few transitions of NUTS on the emulated model; the true model accepts or rejects it (surrogate
    transitions, Liu 2001, section 9.4.3). NUTS with a fixed step size and metric is reversible, and so are several of
    its transitions in a row; so the true posterior is the chain's stationary distribution. Where the emulated model is
    close, nearly all proposals are accepted and draws are nearly independent. A tail or a mode that it lacks is hardly
    ever proposed, though, and a high acceptance rate does not show that. Tuning draws run on the emulated model alone
    and cost no evaluation.

    Parameters
    ----------
    emulated : pymc.Model
        As :func:`emulate` returned it, of the model in context; others are a ``TypeError`` or ``ValueError``.
    transitions : int, optional
        Of NUTS in a proposal, which cost no evaluation. By default as many as the slowest parameter needs for one
        effective draw, judged by the later half of the chain's tuning draws, at most ten; ten without tuning.
    model : pymc.Model, optional
        The true model; the one in context by default.
    target_accept : float
        Of NUTS. Small steps cost no evaluation either, and reach places where large ones diverge. For estimated
        likelihoods PyMC's default, unless given.
    **kwargs
        Of ``pymc.NUTS``, such as ``max_treedepth``.

    Notes
    -----
    Statistics besides those of NUTS (its ``diverging`` and ``tree_size`` are of the last transition): ``accept``, the
    acceptance probability of the proposal; ``moved``; ``log_density`` and ``evaluations`` of the true model. A chain
    begins at a draw of the emulated posterior.

    Models with estimated likelihoods get an :class:`EmulatedGroups` step: groups of variables move one at a time, and
    the estimates of the other groups are kept.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk, pytensor.tensor as pt
    >>> from pytensor import wrap_py
    >>> curve = wrap_py([pt.dvector], [pt.dvector])(lambda p: p[0] * np.exp(-p[1] * np.arange(4.0)))
    >>> with pm.Model() as model:
    ...     p = pm.LogNormal("p", [1.0, -1.0], 0.5, shape=2)
    ...     y = pm.Normal("y", curve(p), 0.2, observed=[2.1, 1.3, 0.8, 0.6])
    >>> emulated = pk.emulate(model, evaluations=60, random_seed=1, progressbar=False)
    >>> with model:
    ...     step = pk.EmulatedNUTS(emulated)
    ...     idata = pm.sample(100, tune=200, chains=2, cores=1, step=step, random_seed=1, progressbar=False)
    >>> bool(idata["sample_stats"]["accept"].mean() > 0.7)
    True
    """

    name = "emulated_nuts"
    _state_class = _State
    stats_dtypes_shapes = {  # noqa: RUF012 (PyMC reads it from the class)
        **pm.NUTS.stats_dtypes_shapes,
        **dict.fromkeys(("accept", "moved", "log_density"), (np.float64, [])),
        "evaluations": (np.int64, []),
    }

    def __init__(
        self,
        emulated: pm.Model,
        *,
        transitions: int | None = None,
        model: pm.Model | None = None,
        target_accept: float = TARGET_ACCEPT,
        **kwargs: Any,
    ) -> None:
        model = pm.modelcontext(model)
        check_emulated(emulated, model, transitions)
        function = density_and_gradient(emulated)
        self._starts, self._given_transitions = emulated.emulation.draws, transitions
        # Interpreted: nearly all of the time is spent in the black boxes.
        point = model.initial_point(random_seed=0)
        self._density = compile_log_density(model, model.value_vars, point, type(self).__name__, {"mode": STABLE})
        self._begin()
        super().__init__(model.value_vars, model=model, target_accept=target_accept, logp_dlogp_func=function, **kwargs)

    def __new__(cls, emulated=None, *args, **kwargs):
        """Return an :class:`EmulatedGroups` step where the model has estimated likelihoods."""
        model = pm.modelcontext(kwargs.get("model"))
        if isinstance(emulated, pm.Model) and estimated_terms(model.logp())[0]:
            return EmulatedGroups(emulated, *args, **kwargs)
        return super().__new__(cls, emulated, *args, **kwargs)

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        """Start a new chain, with a metric of its own."""
        super().setup_chain(rng, tune, draws)
        self._begin()

    def _begin(self):
        self.correction, self.is_placed, self.tuning_draws = None, False, []
        self.transitions = self._given_transitions

    def astep(self, q0: RaveledVars):
        """Return the next position."""
        if not self.is_placed:
            self.is_placed = True
            q0 = RaveledVars(self.rng.choice(self._starts).astype(q0.data.dtype), q0.point_map_info)
        if self.tune:
            q, [stats] = self._moved(q0)
            if self.transitions is None:
                self.tuning_draws.append(q.data)
            return q, [stats | {"accept": 1.0, "moved": 1.0, "log_density": math.nan, "evaluations": 0}]
        if self.transitions is None:
            self.transitions, self.tuning_draws = enough_transitions(self.tuning_draws), []
        before = self._density.evaluations
        if self.correction is None:
            self.correction = self._correct(q0)
            if not math.isfinite(self.correction[0]):
                raise NonFiniteStartError(
                    "the true log density is not finite at a draw of the emulated model: take more evaluations in "
                    "pk.emulate, or tune longer."
                )
        q = q0
        for _ in range(self.transitions):
            q, [stats] = self._moved(q)
        correction = self._correct(q)
        moved, accept = metropolis_accept(self.rng, correction[0] - self.correction[0])
        if moved:
            self.correction = correction
        else:
            q = q0
        own = {"accept": accept, "moved": float(moved), "log_density": self.correction[1]}
        return q, [stats | own | {"evaluations": self._density.evaluations - before}]

    def _moved(self, q: RaveledVars):
        """Return the next position along the emulated model."""
        with np.errstate(all="ignore"):  # a trajectory that runs away is a divergence
            return super().astep(q)

    def _correct(self, q: RaveledVars) -> tuple[float, float]:
        """Return true minus emulated log density, and the true one."""
        true = self._density(q.data)
        learned, _ = self._logp_dlogp_func._pytensor_function(q.data)
        return true - float(learned), true


def enough_transitions(tuning_draws: Sequence[np.ndarray]) -> int:
    """Return how many transitions make a nearly independent draw, by the later half of tuning draws (n, d)."""
    later = np.array(tuning_draws[len(tuning_draws) // 2 :])
    if len(later) < 4 or not later.std(axis=0).all():  # ArviZ computes no effective sample size of fewer
        return _MOST_TRANSITIONS
    sizes = [array_stats.ess(x[None], chain_axis=0, draw_axis=1, method="bulk") for x in later.T]
    return min(math.ceil(len(later) / min(sizes)), _MOST_TRANSITIONS)
