"""Scores of a model without a gradient, learned from log densities at the draws by ``scores/held_out.py``."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.errors import NoGradientError
from pymc_kernel.plugin.model.estimated import estimated_terms
from pymc_kernel.plugin.model.interpreter import QUICK
from pymc_kernel.plugin.model.log_density import SAME_NATS
from pymc_kernel.plugin.model.particle_density import compile_particle_density
from pymc_kernel.scores import HeldOutScores, chain_folds, held_out_scores

ADVICE = (
    "Take more draws from the model, or parameters on whose scale the posterior is nearer to normal; or compare with a "
    "run that you trust by pk.mmd_test(idata, trusted)."
)
_MOST_EVALUATIONS = 1000  # of the model, where the run holds no log densities
_MOST_DRAWS = 4000  # that a surrogate is fitted to; more of them add nothing but time
_FEWEST_DRAWS = 50  # for four folds of a fit
_LOG_DENSITIES = ("log_density", "lp")  # in sample_stats: by steps along an emulated model, by all other steps
_NUM_COMPARED = 8  # draws at which a log density of the run is compared with the model's
_LEAST_OVERLAP = 0.95  # of surrogate and posterior, as an effective share of the weights
_LARGEST_ERROR = 0.2  # of the score; with both bounds, verdicts agreed with those by gradients, see the benchmark
_LARGEST_NOISY_ERROR = 0.1  # noisy weights correct less of the error: above it, correct draws were rejected too often
_MIN_EFFECTIVE_DRAWS = 100.0  # effective number of weighted draws


@dataclass(frozen=True, eq=False)
class LearnedScores(HeldOutScores):
    """Scores of a surrogate of a model at its draws, and how accurate they are.

    ``num_evaluations`` of the model were made for the fit; the other values were in the run. If ``noisy``, log
    densities are estimates, whose noise ``log_density_error`` and ``overlap`` include.
    """

    num_evaluations: int
    noisy: bool

    @property
    def effective_draws(self) -> float:
        """Effective sample size of the draws, weighted by surrogate over posterior."""
        return self.effective_share * len(self.weights)

    @property
    def trouble(self) -> str:
        """Why a check by this surrogate cannot be trusted, in words; empty where it can."""
        if self.score_error > (_LARGEST_NOISY_ERROR if self.noisy else _LARGEST_ERROR):
            return f"its scores are off by {_percent(self.score_error)} at draws that it has not seen"
        if not self.noisy and self.overlap < _LEAST_OVERLAP:
            return f"it shares only {_percent(self.overlap)} of its mass with the posterior"
        if self.noisy and self.effective_draws < _MIN_EFFECTIVE_DRAWS:
            return f"the noise of the estimates leaves {self.effective_draws:.0f} effective draws to judge by"
        return ""

    def __str__(self):
        source = f"{self.num_evaluations} evaluations of the model" if self.num_evaluations else "those of the run"
        text = f"scores of a surrogate, learned from {self.num_values} log densities ({source}); held-out error "
        text += f"{_percent(self.score_error)} of the score"
        if self.noisy:
            return text + f"; with the noise of the estimates, worth {self.effective_draws:.0f} draws"
        return text + f", below {self.log_density_error:.2g} in the log density for 95 % of the draws"

    def attributes(self, prefix: str = "") -> dict[str, float]:
        """Return numbers for the attributes of a result."""
        names = ("score_error", "log_density_error", "overlap", "num_values", "num_evaluations")
        return {f"{prefix}{name}": getattr(self, name) for name in names}


def _percent(share):
    return f"{100.0 * share:.2g} %" if share < 0.995 else f"{100.0 * share:.0f} %"


def learn_scores(model: pm.Model | None, positions: np.ndarray, stats: xr.Dataset | None) -> tuple[int, LearnedScores]:
    """Return the thinning interval, and the held-out scores of the thinned draws.

    ``positions`` (chain, draw, d) are all draws on the unconstrained scale, ``stats`` their ``sample_stats``, which
    must hold log densities where there is no model. ``NoGradientError`` says why no surrogate can be learned.
    """
    names = [] if model is None else estimated_terms(model.logp())[0]
    discrete = [] if model is None else [v.name for v in model.discrete_value_vars]
    if discrete:
        raise NoGradientError(
            f'score="surrogate" learns the log density of continuous variables, and {", ".join(discrete)} '
            f"{'is' if len(discrete) == 1 else 'are'} discrete: sum them out, or compare with a run that you trust by "
            "pk.mmd_test(idata, trusted)."
        )
    chains, draws = positions.shape[:2]
    if chains * draws < _FEWEST_DRAWS:
        raise NoGradientError(
            f'{chains * draws} draws are too few to learn a score from: score="surrogate" needs {_FEWEST_DRAWS} at '
            "least."
        )
    evaluate, noisy = None if model is None else _evaluator(model), bool(names)
    known = _of_the_run(stats, positions, evaluate, noisy)
    if known is None and noisy:
        raise NoGradientError(
            f"the log density is only estimated (by {', '.join(names)}), and sample_stats does not hold the estimates "
            "that were accepted. Sample with a step of this package, which keeps them as lp; plain "
            "pm.sample() takes one for such a model."
        )
    if known is None and model is None:
        raise NoGradientError(
            'score="surrogate" without a model learns from log densities of the draws: put them into sample_stats, as '
            "lp, with the dimensions chain and draw; or give score=, a function that returns gradients."
        )
    every = -(-chains * draws // (_MOST_EVALUATIONS if known is None else _MOST_DRAWS))
    used = positions[:, ::every].reshape(-1, positions.shape[-1])
    if known is None:
        distinct, index = np.unique(used, axis=0, return_inverse=True)
        values, num_evaluations = evaluate(distinct)[index.ravel()], len(distinct)
    else:
        values, num_evaluations = known.reshape(chains, draws)[:, ::every].ravel(), 0
    outside = int((~np.isfinite(values)).sum())
    if outside:
        raise NoGradientError(
            f"the log density is not finite at {outside} of {len(used)} draws: they lie outside the model's support, "
            "or come from another model."
        )
    folds = chain_folds(chains, len(used) // chains)
    try:
        judged = held_out_scores(used, values, folds, noisy=noisy)
    except ValueError as error:
        raise NoGradientError(f"no score could be learned from {len(used)} draws: {error}") from error
    return every, LearnedScores(**vars(judged), num_evaluations=num_evaluations, noisy=noisy)


def _evaluator(model):
    """Return a function from positions (n, d) to log densities (n,); it compiles at its first call."""
    compiled = cache(lambda mode: compile_particle_density(model, 'score="surrogate"', mode and {"mode": mode}))

    def evaluate(positions):
        values = np.add(*compiled(QUICK)(positions))
        # The quick mode omits the numerically stable forms of some functions.
        return values if np.isfinite(values).all() else np.add(*compiled(None)(positions))

    return evaluate


def _of_the_run(stats, positions, evaluate, noisy):
    """Return the log densities (n,) that the run holds; None if it holds none that agree with the model's."""
    flat = positions.reshape(-1, positions.shape[-1])
    known = [] if stats is None else [stats[name] for name in _LOG_DENSITIES if name in stats]
    for one in known:
        if dict(one.sizes) != {"chain": positions.shape[0], "draw": positions.shape[1]}:
            continue
        values = one.transpose("chain", "draw").values.ravel().astype(float)
        if noisy or evaluate is None:
            return values
        # Other steps of a compound may have moved the chain afterwards, or the draws or the model may have changed.
        rows = np.unique(np.linspace(0, len(flat) - 1, _NUM_COMPARED).astype(int))
        there = evaluate(flat[rows])
        if np.ptp(values[rows] - there) <= SAME_NATS + 1e-9 * np.abs(there).max():
            return values
    return None
