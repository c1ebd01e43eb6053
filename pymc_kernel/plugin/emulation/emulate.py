"""Replace the black boxes of a model by functions with gradients, learned from a few evaluations."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from pytensor.graph import Op

from pymc_kernel.likelihood_free import WorkersLost
from pymc_kernel.likelihood_free.interrupts import interrupts_wait
from pymc_kernel.plugin.arguments import RandomSeed, check_between, check_executor, check_whole
from pymc_kernel.plugin.emulation.evaluated import Evaluations
from pymc_kernel.plugin.emulation.model_graph import with_hoisted, with_whole_likelihood
from pymc_kernel.plugin.emulation.search import MODES_APART, TOLERANCE, TOO_FEW, Search
from pymc_kernel.plugin.emulation.structure import unknown_of
from pymc_kernel.plugin.model.estimated import estimated_terms
from pymc_kernel.plugin.model.fingerprint import array_fingerprint
from pymc_kernel.plugin.model.priors import ModelPrior, check_prior_draws, first_places, initial_position
from pymc_kernel.plugin.model.unconstrained import observed_values
from pymc_kernel.plugin.warn import counts_of, warn_of_failures, warn_user

# Most inputs of a part, per parameter. A search that begins at few places may end in a lesser mode of the posterior,
# and no distance shows it. With six inputs for eight parameters (hares and lynx) it did so with two of fourteen fresh
# seeds, where kernel HMC was right; and learning the part gains little there.
_SMALL_PART = 0.5
_NOISE_SHARE = 1.0 / 3.0  # of the noise's standard deviation: an error that adds a ninth to its variance


def black_boxes(model: pm.Model | None = None) -> pd.DataFrame:
    """Return a table of a model's functions without gradients, one row for each group that is learned together.

    Parameters
    ----------
    model : pymc.Model, optional
        The model in context by default.

    Returns
    -------
    pandas.DataFrame
        ``name`` of the function; ``calls`` in an evaluation of the model; ``rows`` of inputs, each of which determines
        its own outputs; ``inputs`` and ``outputs`` of a row; ``functions``, the number of different functions: one
        where all rows share it; ``noisy``, whether outputs are estimates. Empty for a model with gradients everywhere.

    Notes
    -----
    Costs three evaluations, or more where prior draws fail, and about four more of each call with a matrix: these show
    whether each row of outputs depends on its own inputs alone, and whether all rows share one function.

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
    """Return a copy of a model in which functions without gradients are replaced by learned ones that have them.

    PyMC knows most of a model: priors, hierarchies, the distribution of the noise. It does not know the outputs of a
    solver or a program. Gaussian processes learn these as functions of their own inputs, so the cost depends on those
    inputs (say, three for each subject), not on the number of parameters (say, a hundred). Each round runs NUTS on the
    emulated model to find its posterior, then evaluates some draws with the true model, compares, and learns.

    Parameters
    ----------
    model : pymc.Model, optional
        The model in context by default.
    evaluations : int
        Largest number of evaluations of the whole model.
    tolerance : float
        Stop early once the total variation distance at fresh draws is below this in two rounds in a row and chains from
        different starts agree (R-hat below 1.1), and still do once the last evaluations are learned; or after three
        rounds that found nothing to learn while neither chains nor particles agreed. Zero: never.
    batch_size : int, optional
        Evaluations in a round, besides those that explore. By default 2 (k + 2), where k is the number of inputs of the
        largest function, or 4 if the last round's distance is above one half.
    start : mapping, sequence of mappings, DataTree or ndarray (n, d), optional
        First places: values by variable name, as in PyMC's ``initvals`` or from ``pm.find_MAP`` (places around them are
        added); or draws of the model; or an array on the unconstrained scale. By default draws of the model with the
        cheap versions, if all black boxes have one in ``coarse``; else the model's initial point and prior draws: one
        batch, or, if that is more, ten for each input of a function divided by its rows in an evaluation (none for log
        likelihoods, and at most half of ``evaluations``).
    coarse : mapping, optional
        Cheap versions of black boxes, by the operators that ``wrap_py`` returned: functions from tensors to tensors
        with gradients, such as a solver with few steps. Only their error is learned.
    executor : concurrent.futures.Executor or int, optional
        None: in this process. A number: that many worker processes. Or any executor.
    store : str or path, optional
        Directory in which each evaluation is saved as it finishes (extra ``store``), so that a killed run can resume.
        Needs ``random_seed``.
    timeout : float, optional
        Seconds for one evaluation, which then counts as failed.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool

    Returns
    -------
    pymc.Model
        With the same variables, coordinates and data: ``pm.sample``, ``pm.fit``, ``pm.sample_posterior_predictive`` and
        nutpie work with it. Its initial point is the best place that was evaluated. ``pm.sample`` jitters that by up to
        one unit on the unconstrained scale, perhaps to where nothing was learned; ``init="adapt_diag"`` avoids this.
        Its attribute ``emulation``, an :class:`Emulation`, says how far off it is.

    Raises
    ------
    TypeError
        Where a free variable is discrete, or a black box takes whole numbers that depend on free variables.
    ValueError
        Where the model has no black box, or one that has more than 15 inputs in a row (data do not count), is inside
        ``pytensor.scan``, is random, or gives no finite value at draws of the prior.

    Warns
    -----
    UserWarning
        Where the final distance is above the tolerance or was measured only once, chains do not agree, or the posterior
        has modes that ``pm.sample`` does not cross between. A run that is interrupted after its first measurement
        returns what it has, with a warning.

    Notes
    -----
    Evaluations that raise or return non-finite values count as failed; the emulated density is zero where the nearest
    known inputs are those of such a row. If one of several calls raises, the failing one cannot be identified and
    nothing is learned: return NaN for the row instead.

    Uncertainty about a black box lowers the log density, by a potential named ``emulation_penalty``, so draws stay
    where something was evaluated. The fit extends a quarter of each input's range beyond that range; farther out,
    outputs keep their values at the border.

    Data that go into a black box are frozen; emulate again if they change.

    Rows of a matrix, calls in a loop and vectorized operators are treated alike: see :func:`black_boxes`. Positive
    outputs with a constant sum, such as probabilities, keep it, all together or in each row of a matrix. Outputs stay
    where the model has a density. The result is the fit with the smallest confirmed distance of all rounds, or the fit
    to all evaluations if checks without fresh draws find it no worse. A gradient of the emulated model with twelve rows
    of three inputs takes 0.1 milliseconds, a round of 40 parameters some seconds.

    Estimated likelihoods (:class:`EstimatedLikelihood`) are learned, too, each as a function of its own inputs, from
    two estimates at each place, which count as two evaluations. If the distance stays above the
    tolerance, draw exactly (:class:`EmulatedNUTS`). The mean of the logarithms is learned, which lies below the log
    likelihood by half the variance of the noise; the distance includes how this gap changes with the inputs. An
    estimate of zero is learned as one nat below the lowest other one, and counts as failed.

    Chains that begin anew, chains with a power of the likelihood, and evaluations beyond the outermost draws look for
    what the draws miss. If chains do not agree though nothing is left to learn, particles, which need a proper prior,
    weigh the modes. The page of this function says how. The distance cannot include a mode that no draw has seen.

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
    learn(search, evaluations, batch_size, start, progressbar=progressbar, **settings)
    emulated = search.result()
    if problem := search.problem() or MODES_APART * search.best_is_by_particles:
        warn_user(problem)
    return emulated


def check_search(evaluations, batch_size, tolerance, executor, store, timeout, random_seed) -> None:
    """Raise where an argument of :func:`emulate` is out of range."""
    check_whole("batch_size", evaluations=evaluations, batch_size=batch_size)
    check_between("timeout", high=np.inf, timeout=timeout)
    check_executor(executor)
    if not (isinstance(tolerance, int | float | np.number) and 0.0 <= tolerance < np.inf):
        raise ValueError(f"tolerance must be a finite number, not below zero, got {tolerance!r}.")
    if store is not None and not isinstance(random_seed, int | np.integer):
        raise ValueError("store needs a whole number as random_seed: a run that goes on must propose the same places.")


def search_of(model: pm.Model, tolerance: float, rng, compile_kwargs: dict | None = None) -> tuple[Search, bool]:
    """Return a search that has not begun, and whether it learns the log likelihood as a whole.

    It does so where the model has no black box, or one that :func:`emulate` refuses.
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
        check_prior_draws(model, "Where nothing is known the prior alone keeps draws in bounds: give one that can.")
        search = _search_of_boxes(with_whole_likelihood(model, compile_kwargs), tolerance, rng)
        if search is None:
            raise ValueError("this model has no free variable, so there is nothing to sample.")
        return search, True
    except (TypeError, ValueError) as error:
        raise error from refused


def _search_of_boxes(model, tolerance, rng, coarse=None, only_parts=False):
    """Return a search that has not begun; None without black boxes, or for ``only_parts`` without a small part."""
    model = with_hoisted(model)
    unknown = unknown_of(model, rng, only_parts)
    if unknown is None:
        return None
    largest = max(part.like.sizes[0] for part in unknown.parts)
    if only_parts and largest > _SMALL_PART * initial_position(model).size:
        return None
    unknown.check_sizes()
    return Search(model, unknown, tolerance, rng, coarse, _NOISE_SHARE if only_parts else 0.0)


def part_of(model: pm.Model, tolerance: float, rng: np.random.Generator) -> Search | None:
    """Return a search that has not begun for a model of which a small part is unknown, else None.

    That is, where all of the log likelihood is unknown, where a function has more than half as many inputs as the model
    has parameters, and for models that :func:`emulate` refuses. With estimates the search also ends once the standard
    deviation of the log ratio is below a third of that of the noise.
    """
    try:
        return _search_of_boxes(model, tolerance, rng, only_parts=True)
    except (TypeError, ValueError):
        return None


def learn(
    search: Search, evaluations, batch_size=None, start=None, *, progressbar, executor=None, store=None, timeout=None,
    random_seed=None, data_of=None,
) -> tuple[dict, np.ndarray]:  # fmt: skip
    """Run a search with the arguments of :func:`emulate`; a store is recognized by the data of the model ``data_of``.

    Return the counts of ``counts_of``, and the status (n,) of each evaluation. Warns where worker processes died.
    """
    model, true = search.model, search.unknown.true
    prior = ModelPrior(model)
    size = batch_size or search.unknown.batch_size
    if start is None:
        start = search.coarse_places(prior, size)
    if start is None:
        size = max(size, min(search.unknown.design_size, evaluations // (2 * search.repeats)))
    start = first_places(model, prior, start, size - 1, search.rng)
    if evaluations <= (first := search.repeats * len(start)):
        raise ValueError(f"{evaluations} {TOO_FEW}: the first places take {first}, and later ones measure.")
    data = list(observed_values(data_of or model, None).values())
    identity = {"seed": str(random_seed), "data": array_fingerprint(data)}
    entropy = int(search.rng.integers(2**63)) if true.estimated else 0  # of the noise of estimates
    settings = (entropy, executor, store, timeout, identity, start.shape[1])
    with interrupts_wait, closing(Evaluations(true, evaluations, *settings)) as evaluate:
        evaluate.check_stored()
        try:
            search.run(prior, start, batch_size, evaluations, evaluate, progressbar)
        except (KeyboardInterrupt, WorkersLost) as ended:
            if search.best is None:
                raise
            warn_user(f"{str(ended) or 'interrupted'}: the model is what was learned until then.")
        search.first_error, status = evaluate.first_error, evaluate.status(len(search.record))
        counts = counts_of(status, search.first_error, evaluate.workers.deaths)
    warn_of_failures("evaluations", "they count as places without density", counts, most=1.0)
    return counts, status
