"""Models whose black boxes are learned from a few evaluations, and have gradients then."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
from pytensor.graph.op import Op

from pymc_kernel.likelihood_free import WorkersLost
from pymc_kernel.likelihood_free.interrupts import interrupts_wait
from pymc_kernel.plugin.arguments import RandomSeed, check_executor, check_timeout, check_whole
from pymc_kernel.plugin.emulation.evaluations import Evaluations
from pymc_kernel.plugin.emulation.model_graph import with_hoisted, with_whole_likelihood
from pymc_kernel.plugin.emulation.search import MODES_APART, TOLERANCE, TOO_FEW, Search
from pymc_kernel.plugin.emulation.structure import unknown_of
from pymc_kernel.plugin.model.estimated import estimated_terms
from pymc_kernel.plugin.model.fingerprint import array_fingerprint
from pymc_kernel.plugin.model.priors import ModelPrior, check_prior_draws, first_places, initial_position
from pymc_kernel.plugin.model.unconstrained import observed_values
from pymc_kernel.plugin.warn import counts_of, warn_of_failures, warn_user

# Of the parameters. A search that begins at few places may end in a lesser mode of the true posterior, and no distance
# shows it. With six inputs of eight parameters (hares and lynx) it did so with two of fourteen fresh seeds, where
# kernel HMC was right; and what is won by learning the part is small there.
_SMALL_PART = 0.5
_NOISE_SHARE = 1.0 / 3.0  # of the noise's standard deviation: an error that adds a ninth to its variance


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
        one where all rows have the same function; ``noisy``, whether outputs are estimates. Empty for a model that has
        gradients everywhere.

    Notes
    -----
    Costs five evaluations, or more where prior draws fail: a call that is given a matrix is probed, whether its rows
    depend on their own inputs alone, and whether they all have one function.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk, pytensor.tensor as pt
    >>> from pytensor import wrap_py
    >>> curve = wrap_py([pt.dvector], [pt.dvector])(lambda p: p[0] * np.exp(-p[1] * np.arange(4.0)))
    >>> with pm.Model() as model:
    ...     p = pm.LogNormal("p", [1.0, -1.0], 0.5, shape=2)
    ...     y = pm.Normal("y", curve(p), 0.2, observed=[2.1, 1.3, 0.8, 0.6])
    >>> int(pk.black_boxes(model).loc[0, "inputs"]), int(pk.black_boxes(model).loc[0, "outputs"])
    (2, 4)
    """
    model = pm.modelcontext(model)
    unknown = unknown_of(with_hoisted(model), np.random.default_rng(0))
    columns = ["name", "calls", "rows", "inputs", "outputs", "functions", "noisy"]
    table = []
    for part in unknown.parts if unknown else ():
        names = dict.fromkeys(unknown.calls[i].box.name for i in part.calls)
        sizes = len(part.calls), len(part.functions), *part.like.sizes, part.num_functions
        table.append((", ".join(names), *sizes, part.like.is_estimate))
    return pd.DataFrame(table, columns=columns)


def emulate(
    model: pm.Model | None = None,
    evaluations: int = 100,
    *,
    tolerance: float = TOLERANCE,
    batch_size: int | None = None,
    start: Any = None,
    coarse: Mapping[Op, Callable] | None = None,
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
        from different starts agree (R-hat below 1.1), also once the last evaluations are learned; or in three rounds in
        which neither these nor particles agree. Zero: never.
    batch_size : int, optional
        Evaluations in a round, besides those that explore. By default 2 (k + 2), for k inputs of the largest function,
        and 4 where the last round's distance is above one half.
    start : mapping, sequence of mappings, DataTree or ndarray (n, d), optional
        First places: values by the names of variables, as in PyMC's ``initvals`` or from ``pm.find_MAP``, which others
        around it are added to; or draws of the model; or an array on the unconstrained scale. By default draws of the
        model with the cheap versions, where all black boxes have one in ``coarse``; else the model's initial point and
        draws of the prior.
    coarse : mapping, optional
        Cheap versions of black boxes, each by its operator as ``wrap_py`` returned it: functions from tensors to
        tensors with gradients, such as a solver with few steps. Only how far these are off is learned.
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
        nutpie work with it; its initial point is a draw of its own posterior. ``pm.sample`` jitters it by up to one
        unit of the unconstrained scale, which may lead to where nothing was learned, unless ``init="adapt_diag"``. Its
        attribute ``emulation`` is an :class:`Emulation`: how far off it is.

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
        Where the distance is above the tolerance at the end, or was measured once only, or the chains do not agree, or
        the posterior has modes that ``pm.sample`` does not go between. One that is interrupted after its first
        measurement returns what it has, with a warning.

    Notes
    -----
    Evaluations that raise, or have values that are not finite, are counted. Next to inputs of such rows the emulated
    density is zero. Where one of several calls raises, nobody knows which, and nothing is learned of it: return NaN for
    the row instead.

    Where a black box has several rows, what is not known of it costs log density: half the variance of its outputs
    times the curvature of the log likelihood, in a potential named ``emulation_penalty``. Of a log likelihood, or a
    single estimate of one, it costs half of its variance: the likelihood is its harmonic mean over what it may be.
    So draws stay where something was evaluated, and the black box is learned there: from the rows with which, one
    by one, the posterior may be, and from 200 at least. It goes on beyond the range of each input by a quarter of
    that; farther out, outputs are those of the border. Where it has one row, directions in which the outputs change
    take the place of the inputs, if that is likelier: a solver may feel a sum of its inputs, and none by itself.

    Data that go into a black box are frozen as they are; emulate again where they change.

    Rows of a matrix, calls in a loop and vectorized operators come to the same: see :func:`black_boxes`. Inputs and
    outputs that are positive may be learned by their logarithms; the marginal likelihood decides. An output that is
    itself a term of the log density may be learned on a log scale far below its largest value. Positive outputs that
    always have the same sum, such as probabilities, keep it, all together or those of each row of a matrix. Outputs
    stay where the model has a density: it is asked how far rates, probabilities and the like may go. Of all rounds the
    fit with the smallest confirmed distance is returned, or that to all evaluations, where it is no worse by all but
    fresh draws. A gradient of the emulated model with twelve rows of three inputs takes 0.1 milliseconds, a round of 40
    parameters some seconds.

    Likelihoods that are only estimated (:class:`EstimatedLikelihood`) are learned, too, each as a function of its own
    inputs, from two estimates at each place, which count as two evaluations: by their independent noises it is known
    how far off what is learned is, with an error of about the noise variance over the root of the number of places.
    Where that leaves the distance above the tolerance, draw exactly (:class:`EmulatedNUTS`). The mean of the logarithms
    is learned, below the log likelihood by half the variance of the noise; where that changes, the distance has it.
    Estimates of zero are left out, and counted as failed.

    Chains that have converged are challenged by others, once the distance is below the tolerance. These begin as those
    of ``pm.sample`` do, around a draw and around the model's initial point, and at draws of the prior. Where these end
    elsewhere, in a mode that the emulation has invented or that no chain was in, it is evaluated there. Two more
    evaluations of each round are draws with a power of the likelihood below one, as large as what is learned is good
    enough for: between prior and posterior other modes are in reach. Two more are those draws whose log density is
    known least. Where the posterior may go on beyond what was learned, up to four more are there, chosen by the mass
    that they may have; it counts as far as the latest eight of them do have it, and wholly before there was one. Where
    all black boxes have one row, and none is estimated, the model is evaluated beyond the outermost draws, too, for
    each parameter above and below in turn, where what is learned has no draws: the search goes on until two rounds
    found nothing like draws there. There the distance is also that by which the posterior moved with the last
    evaluations. A mode that no draw has seen is not in it.

    Where three rounds found nothing to learn, and chains do not agree all the same, they are in modes apart, or slow.
    Of a model with a proper prior particles take their place: four populations from the prior to the posterior through
    powers of the likelihood, which weigh modes. One place of each population before each of its powers is evaluated
    besides, since a mode that is lost there is lost for good; the search does not end before the weights that these had
    at the power that came next were right within a nat in two rounds.

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
    check_search(evaluations, batch_size, tolerance, executor, store, timeout, random_seed)
    rng = np.random.default_rng(np.random.default_rng(random_seed).integers(2**63))
    search = _search_of_boxes(model, tolerance, rng, coarse)
    if search is None:
        raise ValueError(
            "this model has no function without gradient whose inputs depend on free variables, so there is nothing to "
            "learn: use pm.sample, or pk.sample_surrogate where its likelihood is costly."
        )
    settings = {"executor": executor, "store": store, "timeout": timeout, "random_seed": random_seed}
    ended = learn(search, evaluations, batch_size, start, progressbar=progressbar, **settings)
    emulated = search.result(ended.first_error)
    ended.warn_of_deaths()
    for problem in (search.problem(ended.first_error), MODES_APART * search.best_is_by_particles):
        if problem:
            warn_user(problem)
    return emulated


def check_search(evaluations, batch_size, tolerance, executor, store, timeout, random_seed) -> None:
    """Raise where an argument of :func:`emulate` is out of range."""
    check_whole("batch_size", evaluations=evaluations, batch_size=batch_size)
    check_timeout(timeout)
    check_executor(executor)
    if not (isinstance(tolerance, int | float | np.number) and 0.0 <= tolerance < np.inf):
        raise ValueError(f"tolerance must be a finite number, not below zero, got {tolerance!r}.")
    if store is not None and not isinstance(random_seed, int | np.integer):
        raise ValueError("store needs a whole number as random_seed: a run that goes on must propose the same places.")


def search_of(
    model: pm.Model, tolerance: float, rng: np.random.Generator, compile_kwargs: dict | None = None
) -> tuple[Search, bool]:
    """Return a search that has not begun, and whether it learns the log likelihood as a whole.

    That is where the model has no black box, or has some that :func:`emulate` refuses.
    """
    refused = None
    try:
        if (search := _search_of_boxes(model, tolerance, rng)) is not None:
            return search, False
    except (TypeError, ValueError) as error:
        if estimated_terms(model.logp())[0]:
            raise
        refused = error
    try:
        check_prior_draws(
            model, "Where a likelihood was not evaluated the prior alone keeps draws in bounds: give one that can."
        )
        search = _search_of_boxes(with_whole_likelihood(model, compile_kwargs), tolerance, rng)
        if search is None:
            raise ValueError("this model has no free variable, so there is nothing to sample.")
        return search, True
    except (TypeError, ValueError) as error:
        raise error from refused


def _search_of_boxes(model, tolerance, rng, coarse=None, only_parts=False):
    """Return a search that has not begun, None of a model without black boxes, or of one that is unknown as a whole."""
    model = with_hoisted(model)
    unknown = unknown_of(model, rng, only_parts)
    if unknown is None:
        return None
    most = _SMALL_PART * initial_position(model).size if only_parts else np.inf
    if max(part.like.sizes[0] for part in unknown.parts) > most:
        return None
    unknown.check_sizes()
    return Search(model, unknown, tolerance, rng, coarse or {}, _NOISE_SHARE if only_parts else 0.0)


class Ended(NamedTuple):
    """How the evaluations of a search have ended."""

    first_error: str | None
    status: np.ndarray
    """(n,), of each a :class:`Status`."""
    deaths: int
    """Of worker processes."""

    @property
    def counts(self) -> dict:
        """How many have which status, the first error, and dead workers."""
        return counts_of(self.status, self.first_error, self.deaths)

    def warn_of_deaths(self) -> None:
        """Warn where worker processes died."""
        warn_of_failures("evaluations", "they count as places without density", self.counts, most=1.0)


def part_of(model: pm.Model, tolerance: float, rng: np.random.Generator) -> Search | None:
    """Return a search that has not begun, of a model of which a part is unknown.

    None where the unknown is not a part, or a part with more than half as many inputs as the model has parameters, and
    for what :func:`emulate` refuses. A black box of all parameters that gives one number, the log likelihood, leaves
    nothing of it known. With estimates the search ends, too, where the standard deviation of the log ratio is a third
    of that of the noise.
    """
    try:
        return _search_of_boxes(model, tolerance, rng, only_parts=True)
    except (TypeError, ValueError):
        return None


def learn(
    search: Search, evaluations, batch_size=None, start=None, *, progressbar, executor=None, store=None, timeout=None,
    random_seed=None, data_of=None,
) -> Ended:  # fmt: skip
    """Let a search run, with the arguments of :func:`emulate`; ``data_of`` is the model whose data a store knows."""
    model, true = search.model, search.unknown.true
    prior = ModelPrior(model)
    size = batch_size or search.unknown.batch_size
    if start is None:
        start = search.coarse_places(prior, size)
    start = first_places(model, prior, start, size - 1, search.rng)
    if evaluations <= (first := search.repeats * len(start)):
        raise ValueError(f"{evaluations} {TOO_FEW}: the first places take {first}, and later ones measure.")
    identity = {
        "seed": str(random_seed),
        "data": array_fingerprint(list(observed_values(data_of or model, None).values())),
    }
    path = None if store is None else Path(store)
    entropy = int(search.rng.integers(2**63)) if true.estimated else 0  # of the noise of estimates
    settings = (entropy, executor, path, timeout, identity, start.shape[1])
    with interrupts_wait, closing(Evaluations(true, evaluations, *settings)) as evaluate:
        try:
            search.run(prior, start, batch_size, evaluations, evaluate, progressbar)
        except (KeyboardInterrupt, WorkersLost) as ended:
            if search.best is None:
                raise
            warn_user(f"{str(ended) or 'interrupted'}: the model is what was learned until then.")
        return Ended(evaluate.first_error, evaluate.status(len(search.record)), evaluate.deaths)
