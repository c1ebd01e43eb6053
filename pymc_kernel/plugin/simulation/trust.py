"""Reasons to distrust a posterior that was learned from simulations, in words."""

from pymc_kernel.plugin.typicality import LARGE_ERROR, OUTSIDE

__all__ = ["findings"]

_FEW_EFFECTIVE = 30  # effective number of simulations, below which a warning is given


def findings(typical: float, effective: float, learning_error: float, others: list[str]) -> list[str]:
    """Return reasons to distrust a posterior, in words.

    Parameters
    ----------
    typical : float
        Share of simulations in regions as sparse as that of the observation.
    effective : float
        Effective number of simulations that draws come from.
    learning_error : float
        Standard deviation of a posterior mean between fits to resampled simulations, in posterior ones.
    others : list of str
        Further reasons; empty ones are left out.
    """
    problems = []
    if typical < OUTSIDE:
        problems.append(
            f"only {100 * typical:.1f} % of the simulations lie in regions as sparse as that of the observation, "
            "which is at the edge of what the model simulates, or outside"
        )
    if effective < _FEW_EFFECTIVE:
        problems.append(f"the draws come from an effective number of {effective:.0f} simulations")
    if learning_error > LARGE_ERROR:
        problems.append(
            f"its means differ by {learning_error:.2f} posterior standard deviations between fits to resampled "
            "simulations"
        )
    return problems + [words for words in others if words]
