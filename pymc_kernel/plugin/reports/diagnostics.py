"""Stein diagnostics of a DataTree and the model it was sampled from, beside ArviZ's; mathematics is in ``stein``."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr
from arviz_base import dataset_to_dataframe

from pymc_kernel import stein
from pymc_kernel.errors import NoGradientError
from pymc_kernel.kernels import Kernel
from pymc_kernel.plugin.arguments import RandomSeed
from pymc_kernel.plugin.reports.ksd_report import KSDReport, in_words, misfit_advice, separated
from pymc_kernel.plugin.reports.likelihood_checks import check_learned, normality_of_posterior
from pymc_kernel.plugin.reports.model_draws import Scored, Selection, document_arguments, largest_first, read_draws
from pymc_kernel.plugin.reports.panels import scalars
from pymc_kernel.plugin.reports.surrogate_scores import ADVICE
from pymc_kernel.plugin.warn import findings_in, warn_user

_ATTRIBUTES = ("ksd", "ksd_normal", "ksd_null_low", "ksd_null_high", "ksd_p", "ksd_thin", "ksd_flip_probability")
_LEVEL = 0.05  # at which the tests by a surrogate, with and without weights, must agree


@document_arguments
def ksd_test(
    data: Any,
    *,
    kernel: Kernel | None = None,
    num_replicates: int = 1000,
    thin: int | str = "auto",
    flip_probability: float | str = "auto",
    max_draws: int | None = 2000,
    random_seed: RandomSeed = None,
    **selection: Unpack[Scored],
) -> KSDReport:
    """Test whether draws come from the model's posterior, using the model's own scores.

    Parameters
    ----------
    {arguments}
    kernel : radial kernel of ``pymc_kernel.kernels``, optional
        In standardized coordinates; the inverse multiquadric by default.
    num_replicates : int
        Replicates of the wild bootstrap.
    thin : int or "auto"
        Use one in ``thin`` distinct draws of each chain. "auto": so that all autocorrelations are below a quarter and
        at most ``max_draws`` are left.
    flip_probability : float in (0, 0.5] or "auto"
        Probability of a sign change from draw to draw. "auto": one half for independent draws, 0.1 for others.
    max_draws : int, optional
        Limits the time, which grows with its square. None for all draws.
    random_seed : int, optional
        Seed of the bootstrap.

    Raises
    ------
    NoGradientError
        If the model has no gradient, or an estimated likelihood; the message names the variable and what to do. With
        ``score="surrogate"``, if no score can be learned.

    Notes
    -----
    The test compares averages of the model's scores, weighted by smooth functions of the parameters, with their values
    under the posterior; the functions vary on the scale of a standard deviation. The discrepancy depends on the
    coordinates: draws from a funnel are straightened, all are whitened, then long tails of single coordinates are
    shortened. The test cannot detect wrong weights of separated modes, nor a mode without any draw: use R-hat as well.
    Each parameter is also tested by itself, and all p-values are corrected for all tests: if the draws are right, one
    report in twenty has a p-value below 5 % anywhere. With 30 coordinates the test may miss a wrong correlation of two
    of them. With many draws any small bias has a small p-value: look at the size of the discrepancy, too. A draw that
    is repeated, as after importance resampling, counts as one with a weight.

    With ``score="surrogate"`` the scores are those of a kernel regression q on the log densities of other draws, and
    draws are weighted by q over the posterior, so that an error of q is not mistaken for an error of the draws (Fisher
    and Oates 2023). If q is too inaccurate, or a test without these weights reaches a different verdict, the report
    says that the draws cannot be judged. The noise of an estimated likelihood is averaged out; with few draws or much
    noise no score can be learned, and the report says that, too.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    >>> draws = np.random.default_rng(1).normal([0.0, 0.5], 1.0, (4, 250, 2))  # the second mean is wrong
    >>> data = az.from_dict({"posterior": {"x": draws}})
    >>> report = pk.ksd_test(data, model=model)
    >>> bool(report.p_value < 0.01)
    True
    """
    part = read_draws(Selection(data, **selection))
    settings = {"num_replicates": num_replicates, "thin": thin, "flip_probability": flip_probability}
    return _test(part, random_seed, kernel=kernel, max_draws=max_draws, **settings)


def _test(part, random_seed, **settings):
    """Return the report on draws; ``settings`` as of ``stein.ksd_test``."""

    def tested(weights):
        rng = np.random.default_rng(0 if random_seed is None else random_seed)
        return stein.ksd_test(part.draws, part.scores, coordinates=True, weights=weights, rng=rng, **settings)

    test, unjudged = tested(part.weights), ""
    if part.learned is not None:
        unjudged = part.learned.trouble
        if not unjudged and (tested(None).p_value < _LEVEL) != (test.p_value < _LEVEL):
            unjudged = "its error changes the verdict of the test"
        test = replace(test, thin=part.every * test.thin)
    shares, p_values = part.labeled(test.shares), part.labeled(test.margin_p_values, combine=np.min)
    margins, null = part.labeled(test.margins), part.labeled(test.margin_null, "replicate")
    p_values = p_values * np.nan if unjudged else p_values
    return KSDReport(test, shares, p_values, margins, null, tuple(part.conditional_on), part.learned, unjudged)


@document_arguments
def summary(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    kind: str = "all",
    fmt: str = "wide",
    ci_prob: float | None = None,
    ci_kind: str | None = None,
    round_to: int | str | None = "auto",
    skipna: bool = False,
    num_replicates: int = 1000,
    max_draws: int | None = 2000,
    random_seed: RandomSeed = None,
    **selection: Unpack[Scored],
) -> pd.DataFrame | xr.Dataset:
    """Return ``az.summary`` with two more columns that say whether the draws fit the model's posterior.

    ``ksd_share`` is the parameter's share of the squared kernel Stein discrepancy (shares sum to one); ``ksd_p`` is the
    p-value of its own test, corrected for all tests. The joint result is in ``attrs``: ``ksd``, ``ksd_normal`` (for as
    many independent draws of a normal distribution), ``ksd_null_low`` and ``ksd_null_high`` (5 % and 95 % quantiles for
    the draws with random signs), ``ksd_p``, ``ksd_thin`` and ``ksd_flip_probability``. Deterministic or discrete
    variables have no score, so both columns are NaN for them. If the model has no gradient they are NaN for all
    variables, with a warning that gives the reason; then use ``score="surrogate"``, which adds ``ksd_verdict``,
    ``ksd_score_error`` and others to ``attrs``. Its limits are those of :func:`ksd_test`.

    Parameters
    ----------
    {arguments}
    kind, fmt, ci_prob, ci_kind, round_to, skipna
        As in ``az.summary``. Kinds without diagnostics get no further columns.
    num_replicates, max_draws, random_seed
        As in :func:`ksd_test`.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    >>> draws = np.random.default_rng(1).normal([0.0, 0.5], 1.0, (4, 250, 2))  # the second mean is wrong
    >>> data = az.from_dict({"posterior": {"x": draws}})
    >>> table = pk.summary(data, model=model)
    >>> bool(table.loc["x[1]", "ksd_p"] < 0.01), bool(table.loc["x[0]", "ksd_p"] < 0.01)
    (True, False)
    """
    selected = Selection(data, var_names, **selection)
    selected.need_model()
    asked, sample_dims = selected.chosen, selected.sample_dims
    ordered = largest_first(asked)
    table = az.summary(
        xr.DataTree.from_dict({selected.group: ordered}), group=selected.group, sample_dims=sample_dims, kind=kind,
        fmt=fmt, ci_prob=ci_prob, ci_kind=ci_kind, round_to=round_to, skipna=skipna,
    )  # fmt: skip
    shares, p_values, values, more = xr.Dataset(), xr.Dataset(), [np.nan] * len(_ATTRIBUTES), {}
    try:
        part = read_draws(selected)
    except NoGradientError as error:
        warn_user(f"ksd_share and ksd_p are NaN, because there are no scores: {error}")
    else:
        report = _test(part, random_seed, num_replicates=num_replicates, max_draws=max_draws)
        shares, p_values, test = report.shares, report.p_values, report.test
        values = [test.ksd, test.normal_ksd, *test.null_quantiles.tolist()]
        values += [report.p_value, test.thin, test.flip_probability]
        if report.learned is not None:
            more = {"ksd_verdict": report.verdict(), **report.learned.attributes("ksd_")}
        if report.unjudged:
            shares, values = shares * np.nan, [np.nan] * len(_ATTRIBUTES)
            warn_user(f"ksd_share and ksd_p are NaN; the surrogate cannot judge the draws: {report.unjudged}. {ADVICE}")
    if kind.startswith(("all", "diagnostics")):
        like = asked.isel(dict.fromkeys(sample_dims, 0), drop=True)
        both = [xr.full_like(like, np.nan, dtype=float).fillna(part) for part in (shares, p_values)]
        table = _with_rows(table, xr.concat(both, xr.DataArray(["ksd_share", "ksd_p"], dims="summary")), fmt, round_to)
    if fmt == "wide":
        table = table.loc[list(scalars(selected.as_chains(ordered[list(asked.data_vars)])))]
    table.attrs |= dict(zip(_ATTRIBUTES, values, strict=True)) | more
    return table


def _with_rows(table, added, fmt, round_to):
    """Return the summary with the rows (or columns) ``ksd_share`` and ``ksd_p``, in its own format."""
    if isinstance(round_to, int):
        added = added.round(round_to)
    if fmt == "xarray":
        return xr.concat([table, added], dim="summary")
    if fmt == "long":
        frame = added.to_dataframe().reset_index().set_index("summary")
        frame.index = list(frame.index)
        return pd.concat([pd.DataFrame(table), frame])
    frame = dataset_to_dataframe(largest_first(added), sample_dims=["summary"]).T
    shown = {}
    for column, digits in (("ksd_share", 2), ("ksd_p", 3)):
        table[column] = frame[column].to_numpy()
        shown[column] = {row: "" if np.isnan(x) else f"{x:.{digits}f}" for row, x in frame[column].items()}
    if getattr(table, "_fmt_map", None) is not None:  # how ArviZ shows its own columns
        table._fmt_map = table._fmt_map | shown
    return table


@document_arguments
def diagnose(
    data: Any,
    *,
    level: float = 0.05,
    show_diagnostics: bool = True,
    return_diagnostics: bool = False,
    random_seed: RandomSeed = None,
    **arguments: Any,
) -> bool | tuple[bool, dict[str, Any]]:
    """Print the results of ArviZ's checks and of the kernel Stein discrepancy in words, and what to do.

    It names the parameters whose own tests fail, with the p-values of :func:`ksd_test`, corrected for all tests.

    Parameters
    ----------
    {arguments}
    level : float
        Report p-values below it.
    show_diagnostics, return_diagnostics
        As in ``az.diagnose``.
    random_seed : int, optional
        Seed of the bootstrap and of the other checks.
    **arguments
        ``model``, ``var_names`` and the like from above, and others of ``az.diagnose``, such as ``rhat_max``.

    Returns
    -------
    has_errors : bool
    diagnostics : dict
        If requested: those of ``az.diagnose``; "ksd", a :class:`KSDReport`; "modes", the names of parameters whose
        draws fall into separated modes; "findings", what the sampler warned about; "learned", for models with a
        :class:`LearnedLikelihood`, a list of ``LearnedCheck``: how well its simulations determine the posterior.

    Notes
    -----
    A model without a gradient gets only ArviZ's checks, and a line that says so, unless ``score="surrogate"`` is given.
    For a :class:`SyntheticLikelihood`, up to 1,000 new estimates at the draws test whether its summaries are normal.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    >>> draws = np.random.default_rng(1).normal([0.0, 0.5], 1.0, (4, 250, 2))  # the second mean is wrong
    >>> data = az.from_dict({"posterior": {"x": draws}})
    >>> pk.diagnose(data, model=model)  # doctest: +ELLIPSIS
    The chains, by ArviZ
    ...
    Parameters that do not fit by themselves: x[1] (p = 0.001); p-values are corrected for all tests.
    ...
    True
    """
    selection = {name: arguments.pop(name) for name in Scored.__annotations__ if name in arguments}
    selected = Selection(data, **selection)
    model = selected.need_model()
    if show_diagnostics:
        print("The chains, by ArviZ\n")
    has_errors, found = az.diagnose(
        selected.data, **selected.arguments, show_diagnostics=show_diagnostics, return_diagnostics=True, **arguments
    )
    lines = _how_made(selected.stats)
    if said := [text for group in selected.data.children.values() for text in findings_in(group)]:
        lines += ["\nWhat the sampler warned of\n", *said]
        has_errors, found = True, found | {"findings": said}
    lines += ["\nThe draws against the model, by the kernel Stein discrepancy\n"]
    try:
        part = read_draws(selected)
    except NoGradientError as error:
        lines.append(str(error))
    else:
        report = _test(part, random_seed, max_draws=2000)
        modes = separated(part)
        all_draws = math.prod(part.dataset.sizes[d] for d in selected.sample_dims)
        has_errors = has_errors or report.p_value < level
        lines += in_words(report, modes, level, all_draws, misfit_advice(part, found))
        found |= {"ksd": report, "modes": modes}
    if model is not None and (learned := check_learned(model, selected.draws, np.random.default_rng(random_seed))):
        found["learned"] = learned
        against = [words for check in learned for words in check.warnings()]
        lines.append("\nWhat simulations leave open, by the learned likelihoods\n")
        lines += [*(check.in_words() for check in learned), *against]
        has_errors = has_errors or bool(against)
    rng = np.random.default_rng(random_seed)
    if model is not None and (said := normality_of_posterior(model, selected.draws, rng)):
        lines += ["\nSummaries that are taken for normal\n", said]
        has_errors = True
    lines += _left_open(selected)
    if show_diagnostics:
        print("\n".join(lines))
    return (has_errors, found) if return_diagnostics else has_errors


def _left_open(selected):
    """Return lines on how far chains lie apart that are fits to resampled simulations; none for other chains."""
    stats = selected.data.children.get("sample_stats", {})
    if not np.isfinite(stats.get("learning_error", np.nan)):
        return []
    draws = selected.as_chains(selected.chosen)
    errors = draws.mean("draw").std("chain", ddof=1) / draws.std(["chain", "draw"])
    shown = ", ".join(f"{name} {float(errors[var].sel(of)):.2f}" for name, (var, of) in scalars(errors).items())
    text = "Standard errors of means by the limited number of simulations, in posterior standard deviations"
    return ["\nWhat simulations leave open\n", f"{text}: {shown}."]


def _how_made(stats):
    """Return lines on how the draws were made; none if no step of this package made them."""
    if stats is None or not {"evaluations", "moved"} <= set(stats):
        return []
    moved = stats["moved"].values
    text = f"{int(stats['evaluations'].sum())} evaluations of the log density; {100 * moved.mean():.0f} % of proposals"
    text += " were accepted"
    if "move" in stats:
        names, counts = np.unique(stats["move"].values, return_counts=True)
        shares = [f"{100 * counts[i] / moved.size:.0f} % {names[i]}" for i in np.argsort(-counts, kind="stable")]
        text += f": {', '.join(shares)}"
    return ["\nHow the draws were made\n", f"{text}."]
