"""Models whose black boxes are learned from a few evaluations, and have gradients then."""

from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
from pymc.pytensorf import compile as pymc_compile
from pymc.vartypes import continuous_types
from pytensor.scan.op import Scan
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pymc_kernel.emulation import FittedOutputs, fit_outputs
from pymc_kernel.emulation.outputs import held_out_outputs
from pymc_kernel.likelihood_free import WorkersLost
from pymc_kernel.likelihood_free.interrupts import interrupts_wait
from pymc_kernel.plugin.arguments import RandomSeed, check_executor, check_timeout, check_whole
from pymc_kernel.plugin.blocks.likelihoods import estimated_terms
from pymc_kernel.plugin.emulation.black_boxes import find_black_boxes
from pymc_kernel.plugin.emulation.chains import Chains, largest_rhat
from pymc_kernel.plugin.emulation.emulated_model import LearnedPart, model_with
from pymc_kernel.plugin.emulation.evaluated import Evaluated, TrueModel
from pymc_kernel.plugin.emulation.parts import Part, Rows, parts_of, rows_of
from pymc_kernel.plugin.model.evaluations import Evaluations
from pymc_kernel.plugin.model.fingerprint import array_fingerprint
from pymc_kernel.plugin.model.groups import observed_values
from pymc_kernel.plugin.model.interpreter import STABLE
from pymc_kernel.plugin.model.priors import ModelPrior, first_places, initial_position
from pymc_kernel.plugin.model.scores import without_gradient
from pymc_kernel.plugin.model.unconstrained import split_positions, value_shapes
from pymc_kernel.plugin.warn import warn_user

__all__ = ["Emulation", "black_boxes", "emulate"]

_MOST_INPUTS = 15  # of a row: a trend alone has 136 coefficients then
_CHAINS = 4
_FOLDS = 10  # of cross-validation
_TAIL = 0.05  # of the draws: places with a lower log density are not like them
_TRIED = 20  # draws of the prior, of which one must have finite values


@dataclass(frozen=True, eq=False)
class Emulation:
    """How an emulated model was learned, and how far it is from the true one; ``emulated.emulation`` has it."""

    num_evaluations: int
    """Of the whole model."""
    num_failed: int
    """Of these, without a finite value."""
    distance: float
    """Total variation distance between the posteriors, the largest of three: at the fresh draws of two rounds, which
    had not been learned, and at all places like them, by what is learned without them (ten folds)."""
    log_ratio_sd: float
    """Standard deviation (nats) of true minus learned log density at these draws."""
    effective_share: float
    """Of these draws, were they weighted by importance."""
    rhat: float
    """Largest R-hat of the chains that made these draws."""
    rounds: pd.DataFrame
    """The same after each round, by the number of evaluations that it had learned from."""
    draws: np.ndarray
    """(n, d): draws of the emulated posterior on the unconstrained scale, where the next chains may begin."""


def black_boxes(model: pm.Model | None = None) -> pd.DataFrame:
    """Return a table of the functions in a model that have no gradient, one row for those that are learned together.

    Parameters
    ----------
    model : pymc.Model, optional
        The model in context by default.

    Returns
    -------
    pandas.DataFrame
        ``name`` of the function; ``calls`` in an evaluation of the model; ``rows`` of inputs that are given to it, each
        of which gives outputs by itself; ``inputs`` and ``outputs`` of a row; ``functions``, how many different ones:
        one where all rows have the same function. Empty for a model that has gradients everywhere.

    Notes
    -----
    Costs four evaluations, or more where prior draws fail: a call that is given a matrix is probed, whether its rows
    depend on their own inputs alone, and whether they all have one function.
    """
    model = pm.modelcontext(model)
    boxes = find_black_boxes(model)
    columns = ["name", "calls", "rows", "inputs", "outputs", "functions"]
    if not boxes:
        return pd.DataFrame(columns=columns)
    rng = np.random.default_rng(0)
    true = TrueModel(model, boxes)
    calls, parts = _structure(true, boxes, ModelPrior(model).draw(rng, _TRIED))
    table = []
    for part in parts:
        names = dict.fromkeys(calls[i].box.name for i in part.calls)
        sizes = calls[part.calls[0]].sizes
        table.append((", ".join(names), len(part.calls), len(part.functions), *sizes, part.num_functions))
    return pd.DataFrame(table, columns=columns)


def emulate(
    model: pm.Model | None = None,
    evaluations: int = 100,
    *,
    tolerance: float = 0.05,
    batch_size: int | None = None,
    start: np.ndarray | None = None,
    executor: Executor | int | None = None,
    store: str | Path | None = None,
    timeout: float | None = None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
) -> pm.Model:
    """Return a copy of a model in which functions without gradient are learned, and have gradients.

    Most of a model is known: priors, hierarchies, the distribution of the noise. Unknown to PyMC are the outputs of a
    solver or a program. They are learned by Gaussian processes as functions of their own inputs, so that the cost
    depends on these inputs (three for each subject, say), and not on the number of parameters (a hundred). Rounds of
    NUTS on the emulated model say where its posterior is; some of the draws are evaluated for real, compared, and
    learned.

    Parameters
    ----------
    model : pymc.Model, optional
        The model in context by default.
    evaluations : int
        Of the whole model, at most.
    tolerance : float
        It stops early once the total variation distance at fresh draws is below this in two rounds in a row, and chains
        from different starts agree (R-hat below 1.1).
    batch_size : int, optional
        Evaluations in a round; 2 (k + 2) by default, for k inputs of the largest function.
    start : ndarray (n, d), optional
        First places on the unconstrained scale. By default the model's initial point and draws of the prior.
    executor : concurrent.futures.Executor or int, optional
        None: in this process. A number: as many worker processes. Or any executor.
    store : str or path, optional
        Directory in which every evaluation is kept as it ends (extra ``store``); a run that was killed goes on with
        them. Needs ``random_seed``.
    timeout : float, optional
        Seconds for one evaluation, which then counts as failed.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool

    Returns
    -------
    pymc.Model
        With the same variables, coordinates and data: ``pm.sample``, ``pm.fit``, ``pm.sample_posterior_predictive`` and
        nutpie work with it; its initial point is a draw of its own posterior. Its attribute ``emulation`` is an
        :class:`Emulation`: how far off it is.

    Raises
    ------
    TypeError
        Where a free variable is discrete, or a black box takes whole numbers that depend on free variables.
    ValueError
        Where the model has no black box, or one with more than 15 inputs in a row (data do not count), or inside of
        ``pytensor.scan``; where it is random; and where it gives no finite value at draws of the prior.

    Warns
    -----
    UserWarning
        Where the distance is above the tolerance at the end, or was measured once only, or the chains do not agree. One
        that is interrupted after its first measurement returns what it has, with a warning.

    Notes
    -----
    Evaluations that raise, or have values that are not finite, are counted. Next to inputs of such rows the emulated
    density is zero. Where one of several calls raises, nobody knows which, and nothing is learned of it: return NaN for
    the row instead. Nothing is extrapolated: beyond the range of inputs so far, outputs are those of the border.
    Data that go into a black box are frozen as they are; emulate again where they change.

    Rows of a matrix, calls in a loop and vectorized operators come to the same: see :func:`black_boxes`. Inputs and
    outputs that are positive may be learned by their logarithms; the marginal likelihood decides. Of all rounds the fit
    with the smallest confirmed distance is returned; the last batch only measures. A gradient of the emulated model
    with twelve rows of three inputs takes 0.1 milliseconds, a round of 40 parameters some seconds.

    Chains that have converged are challenged by others, which begin as those of ``pm.sample`` do, around a draw and
    around the model's initial point; where they end elsewhere, in a mode that the emulation has invented, it is
    evaluated there. A distance is
    measured where the emulated posterior is: a mode or a tail that no draw has seen is not in it.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk, pytensor.tensor as pt
    >>> from pytensor import wrap_py
    >>> @wrap_py([pt.dscalar], [pt.dvector])
    ... def curve(rate):
    ...     return np.exp(-rate * np.arange(5.0))
    >>> with pm.Model() as model:
    ...     rate = pm.LogNormal("rate", 0.0, 1.0)
    ...     pm.Normal("y", curve(rate), 0.1, observed=[1.0, 0.6, 0.4, 0.2, 0.1])
    y
    >>> emulated = pk.emulate(model, evaluations=40, random_seed=1, progressbar=False)
    >>> emulated.emulation.distance < 0.05
    True
    """
    model = pm.modelcontext(model)
    check_whole("batch_size", evaluations=evaluations, batch_size=batch_size)
    check_timeout(timeout)
    check_executor(executor)
    if not (isinstance(tolerance, int | float | np.number) and 0.0 <= tolerance < np.inf):
        raise ValueError(f"tolerance must be a finite number, not below zero, got {tolerance!r}.")
    if store is not None and not isinstance(random_seed, int | np.integer):
        raise ValueError("store needs a whole number as random_seed: a run that goes on must propose the same places.")
    boxes = find_black_boxes(model)
    if not boxes:
        raise ValueError(
            "this model has no function without gradient whose inputs depend on free variables, so there is nothing to "
            "learn: use pm.sample. Where the logp of a pm.CustomDist calls a black box, call it in the model and give "
            "logp what it returns, or use pk.sample_surrogate()."
        )
    _refuse(model)
    rng = np.random.default_rng(np.random.default_rng(random_seed).integers(2**63))
    prior, true = ModelPrior(model), TrueModel(model, boxes)
    calls, parts = _structure(true, boxes, first_places(model, prior, None, _TRIED, rng))
    size = batch_size or 2 * (max(calls[p.calls[0]].sizes[0] for p in parts) + 2)
    start = first_places(model, prior, start, size - 1, rng)
    identity = {"seed": str(random_seed), "data": array_fingerprint(list(observed_values(model, None).values()))}
    path = None if store is None else Path(store)
    settings = (0, executor, path, timeout, identity, start.shape[1], "emulated", true.size)
    evaluate = Evaluations(true, evaluations, *settings)
    search = _Search(model, calls, parts, tolerance, rng)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with interrupts_wait, closing(evaluate), Progress(*columns, TimeRemainingColumn(), disable=not progressbar) as bar:
        task = bar.add_task("First places", total=evaluations)
        try:
            batch = start[:evaluations]
            while len(batch):
                vectors = evaluate(len(search.positions), batch, lambda: bar.advance(task))
                search.add(batch, [true.read(v, x) for v, x in zip(vectors, batch, strict=True)])
                if search.best is not None:
                    bar.update(task, description=f"Distance {search.best.distance:.2f}")
                    if search.is_confirmed and search.best.distance < tolerance:
                        break
                batch = search.propose(prior, size)[: evaluations - len(search.positions)]
        except (KeyboardInterrupt, WorkersLost) as ended:
            if search.best is None:
                raise
            warn_user(f"{str(ended) or 'interrupted'}: the model is what was learned until then.")
    return search.result(evaluate.first_error)


def _refuse(model):
    """Raise where NUTS could not sample the model even with gradients in place of the black boxes."""
    estimated, _ = estimated_terms(model.logp())
    if estimated:
        raise ValueError(
            f"the log density of this model is only estimated (by {', '.join(estimated)}): pk.emulate learns exact "
            "functions. Use pk.sample_khmc(), which keeps the estimates that it accepts."
        )
    discrete = [v.name for v in model.value_vars if v.dtype not in continuous_types]
    if discrete:
        raise TypeError(
            f"pk.emulate makes models for NUTS, which moves continuous variables only, but {', '.join(discrete)} "
            f"{'is' if len(discrete) == 1 else 'are'} discrete. Sum them out of the model."
        )


def _structure(true: TrueModel, boxes, positions) -> tuple[list[Rows], list[Part]]:
    """Return the calls as rows, and what is learned together."""
    for box in boxes:
        if isinstance(box.node.op, Scan):
            raise ValueError(
                "a function without gradient is called inside of pytensor.scan, where it cannot be learned by itself: "
                "write the loop in Python, or put all of it into the function."
            )
        if any(v.type.dtype not in continuous_types for v in box.inputs):
            raise TypeError(
                f"{box.name} has a whole number as an input that depends on free variables, by which nothing can be "
                "differentiated: give it the number before it was rounded, or pk.sample_smc() the model."
            )
    first, others = true.learn_shapes(positions)
    calls = [
        rows_of(box, inputs, outputs, lambda i=i: others.inputs[i])
        for i, (box, inputs, outputs) in enumerate(zip(boxes, first.inputs, first.outputs, strict=True))
    ]
    parts = parts_of(calls)
    for part in parts:
        call = calls[part.calls[0]]
        if call.sizes[0] > _MOST_INPUTS:
            raise ValueError(
                f"{call.box.name} has {call.sizes[0]} inputs that depend on free variables, more than can be learned "
                f"from few evaluations ({_MOST_INPUTS}). Compute fewer from them in the model, call it for each "
                "subject by itself, or use pk.sample_khmc()."
            )
    return calls, parts


class _GivenRows:
    """Outputs of a part that are given as numbers: rows (b, q)."""

    def __init__(self, num_rows, num_outputs):
        self.rows = pytensor.shared(np.ones((num_rows, num_outputs)), shape=(num_rows, num_outputs))

    def __call__(self, inputs):
        return self.rows


class _Round(NamedTuple):
    num_evaluations: int
    distance: float
    log_ratio_sd: float
    effective_share: float
    held_out: float
    rhat: float


class _Search:
    """Evaluations so far, what was learned of them, and chains on the emulated model."""

    def __init__(self, model, calls, parts, tolerance, rng):
        self.calls, self.parts, self.tolerance, self.rng = calls, parts, tolerance, rng
        self.learned = [LearnedPart(p, f"part{i}", *calls[p.calls[0]].sizes) for i, p in enumerate(parts)]
        self.emulated = model_with(model, calls, parts, self.learned)
        left = without_gradient(self.emulated, self.emulated.continuous_value_vars)
        if left:
            raise ValueError(
                f"besides its black boxes, this model has log density terms without gradient ({', '.join(left)}), "
                "which pk.emulate does not learn: use pk.sample_surrogate(). Where a term is a pm.CustomDist whose "
                "logp calls a black box, call it in the model and give logp what it returns."
            )
        given = [_GivenRows(len(p.functions), calls[p.calls[0]].sizes[1]) for p in parts]
        self.given_rows = [g.rows for g in given]
        with_given = model_with(model, calls, parts, given)
        with with_given:
            self.density_given = pymc_compile(
                with_given.value_vars, with_given.logp(), mode=STABLE, on_unused_input="ignore"
            )
        self.shapes, self.initial = value_shapes(model), initial_position(model)
        self.positions = np.empty((0, self.initial.size))
        self.evaluated: list[Evaluated] = []
        self.chains = self.fits = self.draws = self.best = self.best_fits = self.best_draws = None
        self.rounds: list[_Round] = []
        self.is_confirmed = False

    def add(self, batch: np.ndarray, evaluated: list[Evaluated]) -> None:
        """Take in what was evaluated; of fresh draws, measure the distance first."""
        if self.fits is not None:
            learned = np.array([self.chains.log_density(x) for x in batch])
            measured = _measured(np.array([e.log_density for e in evaluated]) - learned)
            self.rounds.append(_Round(len(self.positions), *measured, self.held_out, self.rhat))
            # A round has few draws. The worse of two in a row is no luck, and is not chosen among many for being small.
            worse = max(self.rounds[-2:], key=lambda r: (not Chains.have_converged(r.rhat), r.distance))
            worse = worse._replace(distance=max(worse.distance, self.held_out))
            is_confirmed = len(self.rounds) > 1 and Chains.have_converged(worse.rhat)
            if self.best is None or (is_confirmed, -worse.distance) >= (self.is_confirmed, -self.best.distance):
                self.best, self.is_confirmed = worse, is_confirmed
                self.best_fits, self.best_draws = self.fits, self.draws
        self.positions = np.concatenate([self.positions, batch])
        self.evaluated += evaluated

    def propose(self, prior, size: int) -> np.ndarray:
        """Return the places (size, d) to evaluate next: draws of the posterior with all that was learned."""
        self.fits = self._fitted()
        if self.fits is None:
            return prior.draw(self.rng, size)
        self._renew(self.fits)
        with interrupts_wait.not_here():
            if self.chains is None:
                log_densities = np.array([e.log_density for e in self.evaluated])
                starts = self.positions[np.argsort(-log_densities)[:_CHAINS]]
                starts = starts[np.isfinite(np.sort(-log_densities)[:_CHAINS])]
                variances = np.maximum(prior.draw(self.rng, 100).var(axis=0), 1e-12)
                self.chains = Chains(self.emulated, starts, variances, self.rng)
            draws, self.rhat = self.chains.draw()
            self.draws = draws.reshape(-1, draws.shape[2])
            self.held_out = self._held_out_distance() if Chains.have_converged(self.rhat) else 1.0
            if self.held_out < self.tolerance:
                draws, self.rhat = self._challenged(draws)
                self.draws = draws.reshape(-1, draws.shape[2])
        each = -(-size // len(draws))
        kept = np.linspace(0, draws.shape[1], each + 1).astype(int)[1:] - 1
        return draws[:, kept].transpose(1, 0, 2).reshape(-1, draws.shape[2])[:size]

    def _challenged(self, draws: np.ndarray) -> tuple[np.ndarray, float]:
        """Return draws and their R-hat, with those of other chains where these have ended elsewhere.

        A surrogate may have modes where nothing was evaluated. Chains that go on from round to round never see them.
        Those of ``pm.sample`` do, which begin around a draw (see ``result``) or, with initial values of the user,
        elsewhere. What is found there is evaluated next.
        """
        flat = draws.reshape(-1, draws.shape[2])
        centers = [self.rng.choice(flat), self.initial] * (_CHAINS // 2)
        others, _ = self.chains.elsewhere(centers, np.maximum(flat.var(axis=0), 1e-12), self.rng).draw()
        count = min(draws.shape[1], others.shape[1])
        both = np.concatenate([draws[:, -count:], others[:, -count:]])
        rhat = largest_rhat(both)
        return (draws, rhat) if Chains.have_converged(rhat) else (both, rhat)

    def result(self, first_error) -> pm.Model:
        """Return the emulated model with the best of the fits; warn of what speaks against it."""
        if self.best is None:
            said = f" The first error: {first_error}" if first_error else ""
            raise ValueError(
                f"{len(self.evaluated)} evaluations are too few to learn from and to measure what was learned.{said}"
            )
        self._renew(self.best_fits)
        self._begin_at(self.positions[np.argmax([e.log_density for e in self.evaluated])])
        failed = sum(not np.isfinite(e.log_density) for e in self.evaluated)
        best = self.best
        self.emulated.emulation = Emulation(
            len(self.evaluated),
            failed,
            best.distance,
            best.log_ratio_sd,
            best.effective_share,
            best.rhat,
            pd.DataFrame(self.rounds),
            self.best_draws,
        )
        problems = []
        if not best.distance < self.tolerance:
            problems.append(
                f"its posterior is at a distance of {best.distance:.2f} from the true one (log densities differ by "
                f"{best.log_ratio_sd:.2g} nats at fresh draws)"
            )
        if not Chains.have_converged(best.rhat):
            problems.append(f"NUTS chains on it do not agree (R-hat {best.rhat:.2f})")
        elif not self.is_confirmed:
            problems.append("this was measured once only")
        if problems:
            warn_user(
                f"the emulated model should not be trusted: {' and '.join(problems)}, after {len(self.evaluated)} "
                "evaluations. Take more evaluations, or a prior or start= nearer to the data."
                + (f" {failed} evaluations failed; the first error: {first_error}" if failed and first_error else "")
            )
        return self.emulated

    def _held_out_distance(self) -> float:
        """Return the distance at all places like the draws, each with outputs that are learned from other places.

        A round has few fresh draws: those of a step in a function fall beside it more often than not.
        """
        folds = np.arange(len(self.evaluated)) % _FOLDS
        rows_of_parts = []
        for part, (of_part, _) in zip(self.parts, self.fits, strict=True):
            inputs, outputs = self._values(part)
            predicted = np.full(outputs.shape, np.nan)
            for function in range(part.num_functions):
                mine = part.functions == function
                x, y = inputs[:, mine], outputs[:, mine]
                is_finite = np.isfinite(x).all(axis=2) & np.isfinite(y).all(axis=2)
                fold = np.broadcast_to(folds[:, None], is_finite.shape)[is_finite]
                block = np.full(y.shape, np.nan)
                block[is_finite] = held_out_outputs(of_part[function], x[is_finite], y[is_finite], fold)
                predicted[:, mine] = block
            rows_of_parts.append(predicted)
        least = np.quantile([self.chains.log_density(x) for x in self.draws], _TAIL)
        log_ratios = []
        for i, (x, e) in enumerate(zip(self.positions, self.evaluated, strict=True)):
            # Failed ones lie anywhere: fresh draws say how many of the posterior's fail.
            if not np.isfinite(e.log_density) or max(self.chains.log_density(x), e.log_density) < least:
                continue
            for shared, predicted in zip(self.given_rows, rows_of_parts, strict=True):
                shared.set_value(predicted[i])
            split = split_positions(self.emulated, x[None], self.shapes)
            log_ratios.append(e.log_density - float(self.density_given(*[p[0] for p in split])))
        return _measured(np.array(log_ratios))[0]

    def _begin_at(self, position: np.ndarray) -> None:
        """Make a position (d,) the initial point of the emulated model: away from what was learned all is invented."""
        model = self.emulated
        parts = split_positions(model, position[None], self.shapes)
        values = model.replace_rvs_by_values(model.free_RVs)
        of_free = pymc_compile(model.value_vars, values, mode=STABLE, on_unused_input="ignore")(*[p[0] for p in parts])
        for variable, value in zip(model.free_RVs, of_free, strict=True):
            model.set_initval(variable, value)

    def _fitted(self) -> list[tuple[list[FittedOutputs], list]] | None:
        """Return what is learned of each function of each part, and where each failed; None for too few rows."""
        fits = []
        for part in self.parts:
            inputs, outputs = self._values(part)
            has_values = np.isfinite(inputs).all(axis=2) & np.isfinite(outputs).all(axis=2)
            # Of several rows without any value nobody knows which one failed.
            has_failed = np.isfinite(inputs).all(axis=2) & ~has_values
            has_failed &= has_values.any(axis=1, keepdims=True) | (has_values.shape[1] == 1)
            of_part, known = [], []
            for function in range(part.num_functions):
                x, y, good, bad = (v[:, part.functions == function] for v in (inputs, outputs, has_values, has_failed))
                if good.sum() < x.shape[2] + 2:
                    return None
                of_part.append(fit_outputs(x[good], y[good], self.rng))
                known.append((x[good | bad], bad[good | bad]))
            fits.append((of_part, known))
        return fits

    def _values(self, part):
        """Return inputs and outputs (evaluations, rows, k or q) of a part so far."""
        members = [(i, self.calls[i]) for i in part.calls]
        inputs = [np.concatenate([c.inputs(e.inputs[i]) for i, c in members]) for e in self.evaluated]
        outputs = [np.concatenate([c.outputs(e.outputs[i]) for i, c in members]) for e in self.evaluated]
        return np.array(inputs), np.array(outputs)

    def _renew(self, fits):
        for learned, (of_part, known) in zip(self.learned, fits, strict=True):
            learned.renew(of_part, known)


def _measured(log_ratios) -> tuple[float, float, float]:
    """Return total variation distance, standard deviation and effective share of true over learned densities."""
    finite = log_ratios[np.isfinite(log_ratios)]
    if finite.size < 2:
        return 1.0, np.inf, 0.0
    weights = np.where(np.isfinite(log_ratios), np.exp(log_ratios - finite.max()), 0.0)
    weights /= weights.mean()
    return 0.5 * float(np.abs(weights - 1.0).mean()), float(finite.std(ddof=1)), float(1.0 / (weights**2).mean())
