"""``pm.sample_smc`` with kernels of this package, and its statistics made tidy."""

from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.plugin import statistics
from pymc_kernel.plugin.arguments import check_keywords, keywords_of
from pymc_kernel.plugin.reports.likelihood_checks import normality_of_posterior
from pymc_kernel.plugin.samplers.smc_kernels import EPSILON, KernelHMCSMC, ParticleKernel
from pymc_kernel.plugin.warn import report, says_what_evidence_lacks

_HANDED_OVER = {"self", "args", "kwargs", "kernel_kwargs", "moves", "var_info"}  # not arguments of the user
# Share of distinct particles below which a warning is given: of 1,000 particles twenty would be distinct.
_FEW_DISTINCT = 0.02
_STILL_CORRELATED = 0.7  # with the positions at the start of a stage; above, a warning is given


@says_what_evidence_lacks
def sample_smc(draws: int = 2000, kernel: type = KernelHMCSMC, **kwargs: Any) -> xr.DataTree:
    """Return the result of ``pm.sample_smc`` with a tidy group of statistics, ready to be saved.

    Parameters
    ----------
    draws : int
        Particles.
    kernel : type
        One of ours: ``KernelHMCSMC``, ``KASMC``, ``ASMC``.
    kwargs
        To ``pm.sample_smc`` and to the kernel.

    Returns
    -------
    DataTree
        As from ``pm.sample_smc``, with ``smc_stats`` in place of its ragged ``sample_stats``: each statistic has the
        dimensions ``chain`` and ``stage``, filled with NaN behind a chain's last stage; ``log_evidence`` has the
        dimension ``chain``. For a block :class:`KernelABC` named ``y`` there is ``epsilon_y``, the bandwidths at each
        stage: a power b of a Gaussian kernel is one whose bandwidth is larger by 1 / sqrt(b).

    Notes
    -----
    An interrupt ends it without a result, as it does ``pm.sample_smc``: particles of a stage before the last are no
    draws of the posterior. It warns where summaries that :class:`SyntheticLikelihood` takes for normal are not, by 500
    new estimates at the draws.

    |unseen mode|

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    ...     y = pm.Normal("y", x[0] ** 2 + x[1], 0.5, observed=1.0)
    ...     idata = pk.sample_smc(500, chains=2, cores=1, random_seed=1, progressbar=False)
    >>> idata["smc_stats"]["log_evidence"].sizes["chain"]
    2
    """
    if not (isinstance(kernel, type) and issubclass(kernel, ParticleKernel)):
        raise TypeError(f"kernel must be one of pk.KernelHMCSMC, pk.KASMC, pk.ASMC, got {kernel!r}.")
    own = set().union(*(keywords_of(c.__init__) for c in kernel.__mro__ if c is not object))
    advice = "It takes the arguments of pm.sample_smc and those of its kernel, see help(pk.KernelHMCSMC)."
    known = (keywords_of(pm.sample_smc) | own) - _HANDED_OVER
    check_keywords("sample_smc()", kwargs, known, advice)
    if not kwargs.get("return_inferencedata", True):
        raise ValueError(
            f"sample_smc returns a DataTree: leave return_inferencedata out, or take pm.sample_smc(kernel=pk."
            f"{kernel.__name__}, return_inferencedata=False)."
        )
    idata = _tidied(pm.sample_smc(draws, kernel=kernel, **kwargs))
    model = pm.modelcontext(kwargs.get("model"))
    if said := normality_of_posterior(model, idata["posterior"].to_dataset(), np.random.default_rng(0)):
        report(f"sample_smc: {said}", idata[statistics.SMC_GROUP])
    return idata


def _tidied(idata):
    """Return a result of ``pm.sample_smc`` with a group ``smc_stats``, which can be saved.

    PyMC writes one list a chain, of as many entries as the chain had stages, which neither netCDF nor zarr takes.
    """
    stats = idata["sample_stats"]
    chains = idata["posterior"].sizes["chain"]
    columns = {name: _per_chain(stats[name].values, chains) for name in stats.data_vars}
    stages = max(len(one) for one in columns["beta"])
    data = {}
    for name, column in columns.items():
        padded = np.full((chains, stages), np.nan)
        for c, values in enumerate(column):
            padded[c, : len(values)] = values
        data[statistics.INVERSE_TEMPERATURE if name == "beta" else name] = (("chain", statistics.STAGE), padded)
    evidence = data.pop("log_marginal_likelihood")[1]
    last = [len(one) - 1 for one in columns["beta"]]
    data[statistics.LOG_EVIDENCE] = ("chain", evidence[np.arange(chains), last])
    data["num_stages"] = ("chain", np.array(last) + 1)
    coords = {"chain": idata["posterior"]["chain"].values, statistics.STAGE: np.arange(stages)}
    settings = {name: value for name, value in stats.attrs.items() if value is not None}
    for name in [n for n in settings if n.startswith(EPSILON)]:
        final = np.atleast_1d(settings.pop(name))
        widths = final / np.sqrt(data[statistics.INVERSE_TEMPERATURE][1][:, :, None])
        data[name] = (("chain", statistics.STAGE, f"{name.removeprefix(EPSILON)}_summary"), widths)
    tidy = xr.Dataset(data, coords=coords, attrs=settings)
    _warn(tidy)
    groups = {name: node.to_dataset() for name, node in idata.children.items() if name != "sample_stats"}
    return xr.DataTree.from_dict({**groups, statistics.SMC_GROUP: tidy})


def _per_chain(values, chains):
    """Return one vector a chain of what PyMC has packed into an object array, or for one chain into a plain one."""
    if chains == 1:
        return [np.asarray(values, dtype=float).ravel()]
    return [np.asarray(one, dtype=float) for one in values]


def _warn(tidy):
    distinct = tidy.get("distinct_ancestors")
    if distinct is not None and float(distinct.min()) < _FEW_DISTINCT:
        report(
            f"At one stage only {100 * float(distinct.min()):.1f} % of the particles had offspring: the evidence is "
            "unreliable. Take more particles, or a higher threshold.",
            tidy,
        )
    correlation = tidy.get(statistics.CORRELATION)
    if correlation is not None and float(correlation.max()) > _STILL_CORRELATED:
        report(
            "At one stage the particles were still correlated with their positions at its start "
            f"({float(correlation.max()):.2f}) after max_moves moves: raise max_moves, or take KernelHMCSMC.",
            tidy,
        )
