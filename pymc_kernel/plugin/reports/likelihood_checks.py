"""Checks, in words, whether synthetic and learned likelihoods can be trusted in the region of a posterior."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.embeddings.inputs import typicality
from pymc_kernel.likelihood_free.estimates import normality_errors
from pymc_kernel.plugin.model.estimated import normal_blocks
from pymc_kernel.plugin.model.interpreter import compiling
from pymc_kernel.plugin.model.log_density import LogDensity, compile_log_density
from pymc_kernel.plugin.model.unconstrained import coordinate_names, rows_of, unconstrained_draws

_MOST_DRAWS, _FEWEST_DRAWS = 1000, 100
_MOST_ROWS = 50_000  # of draws times rows of data, which take some seconds for each replicate
_PLACES = 4000  # parameter vectors that are compared with the simulated ones
_HARDLY_ANY = 0.002  # a place is empty if less than this share of the simulations lies in regions as sparse
# Standard error of a mean, in posterior standard deviations, above which to warn: of means with an error of .5, a
# third are .5 off or more. It warned of 11 % of 219 posteriors without a mean that far off, and of 41 % of 69 others.
LARGE_ERROR = 0.5
LARGE_SHARE = 0.1  # share of draws in empty places: if they are all wrong, the total variation distance is as large


@dataclass(frozen=True)
class LearnedCheck:
    """How well a posterior by the learned likelihood ``name`` is known, and what speaks against it.

    ``errors`` are, for each free variable, the standard errors of its posterior means due to the limited number of
    simulations, in posterior standard deviations: of means with one of .5, two thirds are less than .5 off. ``outside``
    (k,) is, for each row of the data, the share of draws of its parameters where hardly anything was simulated.
    """

    name: str
    errors: dict[str, np.ndarray]
    outside: np.ndarray

    @property
    def least_known(self) -> tuple[str, float]:
        """The variable with the largest error, and that error."""
        return max(((name, float(e.max(initial=0.0))) for name, e in self.errors.items()), key=lambda pair: pair[1])

    def in_words(self) -> str:
        """Return how well the posterior means are known."""
        name, error = self.least_known
        return (
            f"By the simulations that {self.name} was learned from, posterior means are known to {error:.2f} posterior "
            f"standard deviations ({name}, the least known). More simulations, made where this posterior is, make that "
            "smaller."
        )

    def warnings(self) -> list[str]:
        """Return the reasons to distrust the posterior."""
        row, words, (name, error) = int(self.outside.argmax()), [], self.least_known
        if error > LARGE_ERROR:
            words.append(
                f"The simulations that {self.name} was learned from leave the posterior mean of {name} open by "
                f"{error:.2f} posterior standard deviations: so much of its width is not of the data. Learn from more "
                "simulations where this posterior is."
            )
        if self.outside[row] > LARGE_SHARE:
            words.append(
                f"{100 * self.outside[row]:.0f} % of the draws of the parameters of row {row} of {self.name} lie where "
                "hardly any simulation was made: there the likelihood is extrapolated. Learn from simulations there, "
                "or keep the prior within those that there are."
            )
        return words


def check_learned(model: pm.Model, posterior, rng: np.random.Generator) -> list[LearnedCheck]:
    """Return a check for each learned likelihood of a model, given draws (chain, draw) of its free variables.

    To first order a mean moves by the posterior covariance of its parameter with the change of the log likelihood. For
    each replicate of the learned density the change is summed over all rows of the data, at each draw.
    """
    blocks = [rv for rv in model.observed_RVs if hasattr(rv.tag, "learned")]
    names = [rv.name for rv in model.free_RVs]
    if not blocks or not set(names) <= set(posterior):
        return []
    columns = {name: rows_of(posterior[name]) for name in names}
    order = rng.permutation(len(columns[names[0]]))
    found = []
    for rv in blocks:
        learned = rv.tag.learned
        theta, rows = rv.owner.op.dist_params(rv.owner)
        with compiling():
            parameters_at = model.compile_fn([theta], inputs=model.free_RVs, point_fn=False, on_unused_input="ignore")
        rows = rows.eval()
        shape = np.broadcast_shapes(rows.shape[:-1], tuple(theta.shape[:-1].eval()))
        rows = np.broadcast_to(rows, (*shape, learned.num_summaries)).reshape(-1, learned.num_summaries)
        some = order[: int(np.clip(_MOST_ROWS // len(rows), _FEWEST_DRAWS, _MOST_DRAWS))]
        chosen = {name: values[some] for name, values in columns.items()}
        at_draws = [parameters_at(*one)[0] for one in zip(*chosen.values(), strict=True)]
        each = (*shape, learned.num_parameters)
        parameters = np.array([np.broadcast_to(one, each).reshape(len(rows), -1) for one in at_draws])
        changes = _changes(learned, parameters.reshape(-1, learned.num_parameters), rows, len(some))
        errors = {name: _moved(values.reshape(len(some), -1), changes) for name, values in chosen.items()}
        found.append(LearnedCheck(rv.name, errors, _share_outside(learned, parameters, rng)))
    return found


def _changes(learned, parameters, rows, num_draws):
    """Return the log likelihood of all rows by each replicate minus that by the estimate, at each draw (r, s)."""
    repeated = np.tile(rows, (num_draws, 1))
    plain, changes = learned.log_density(parameters, repeated), np.empty((learned.num_replicates, num_draws))
    for number, out in enumerate(changes):
        with np.errstate(invalid="ignore"):
            change = learned.replicate(number).log_density(parameters, repeated) - plain
        out[:] = np.nan_to_num(change, nan=0.0).reshape(num_draws, -1).sum(axis=1)
    return changes


def _moved(values, changes):
    """Return root mean squares (p,) over replicates of the shifts of means, corrected for Monte Carlo error."""
    spread = values.std(axis=0)
    scaled = (values - values.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    centered = changes - changes.mean(axis=1, keepdims=True)
    squares = (centered @ scaled / len(values)) ** 2 - (centered**2).mean(axis=1, keepdims=True) / len(values)
    return np.sqrt(np.maximum(squares.mean(axis=0), 0.0)) if len(changes) else np.zeros(values.shape[1])


def _share_outside(learned, parameters, rng):
    """Return for each row the share (k,) of draws of its parameters (s, k, d) in places without simulations."""
    some = parameters[: max(_PLACES // parameters.shape[1], 20)]
    shares = typicality(learned.examples[0], some.reshape(-1, parameters.shape[-1]), rng)
    return (shares < _HARDLY_ANY).reshape(some.shape[:2]).mean(axis=0)


_KINDS = ("mean", "spread", "5 % quantile", "95 % quantile")
_LEAST_ERROR = 0.2  # no warning below: posterior standard deviations of a mean or quantile, or log ratio of spreads
_STANDARD_ERRORS = 2.0  # that an error must differ from zero by
_NUM_SIMULATED = 1000  # draws at which new estimates are made: they determine a 5 % quantile to .1


def normality_of_posterior(model: pm.Model, posterior: xr.Dataset, rng: np.random.Generator) -> str:
    """Return the text of :func:`normality_warning` for draws (chain, draw) of all free variables."""
    if not normal_blocks(model) or not {rv.name for rv in model.free_RVs} <= set(posterior):
        return ""
    point = model.initial_point(random_seed=0)
    density = compile_log_density(model, model.value_vars, point, "this check")
    density.seed(rng)
    draws = unconstrained_draws(posterior, model)
    names = coordinate_names(model.value_vars, [np.shape(point[v.name]) for v in model.value_vars])
    return normality_of_draws(density, draws.reshape(-1, draws.shape[-1]), names, rng)


def normality_of_draws(density: LogDensity, draws: np.ndarray, names: Sequence[str], rng: np.random.Generator) -> str:
    """Return the text of :func:`normality_warning` by new estimates of the density at some of the draws (n, d)."""
    simulated = []
    for position in rng.permutation(draws)[:_NUM_SIMULATED]:
        if np.isfinite(density(position)):
            density.settle(True)
            simulated.append((position, density.simulated))
    return normality_warning(simulated, names)


def normality_warning(simulated: Sequence, entries: Sequence[str]) -> str:
    """Return a warning if summaries that are not normal make the posterior wrong; otherwise an empty text.

    ``simulated`` are pairs: the position (d,) of a draw, and by the names of blocks the summaries behind the estimate
    and those of the data. ``entries`` are the names of the coordinates.
    """
    if not simulated:
        return ""
    positions, by_block = zip(*simulated, strict=True)
    said = []
    for block, (_, observed) in by_block[0].items():
        errors = normality_errors(np.array(positions), [summaries[block][0] for summaries in by_block], observed)
        wrong = [] if errors is None else _words(*errors, entries)
        if wrong:
            said.append(
                f"the summaries of {block!r} are taken for normal, and where the posterior is they are not: by the "
                f"simulations behind the draws (unconstrained scale), {'; '.join(wrong)}. Transform the summaries, or "
                "take pk.KernelABC or pk.sample_likelihood_free."
            )
    return " ".join(said)


def _words(moved, standard_errors, entries):
    """Return words on the errors that are large and significant."""
    words = []
    for kind, *rows in zip(_KINDS, moved, standard_errors, strict=True):
        for name, by, error in zip(entries, *rows, strict=True):
            if abs(by) <= max(_LEAST_ERROR, _STANDARD_ERRORS * error):
                continue
            if kind == "spread":
                words.append(f"the true spread of {name} is {np.exp(by):.2f} times the draws'")
            else:
                side = "below" if by > 0.0 else "above"
                words.append(f"the {kind} of {name} is {abs(by):.2f} posterior standard deviations {side} the true one")
    return words
