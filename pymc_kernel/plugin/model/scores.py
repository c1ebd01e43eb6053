"""Gradients of the log density of a model at draws."""

import functools

import numpy as np
import pymc as pm
from pytensor.gradient import grad

from pymc_kernel.errors import NoGradientError
from pymc_kernel.plugin.model.estimated import estimated_terms
from pymc_kernel.plugin.model.interpreter import STABLE, over_draws

_GRADIENT_ERRORS = (NotImplementedError, TypeError, AttributeError, ValueError)  # what an Op without a gradient raises


def compile_scores(model: pm.Model):
    """Return a function from draws of all value variables, a list of (n, ...), to scores (n, d).

    The scores are those of the continuous value variables, one after the other; ``d`` counts these alone. Raises
    ``NoGradientError`` where a term has no gradient, or is only estimated.

    Vectorized over draws, PyTensor's own interpreter is as fast as compiled code, which takes ten times longer to
    compile than all else here; so nothing is compiled. Its quick mode leaves out the numerically stable forms of some
    functions: where a score is not finite, all scores are evaluated again with these forms, some ten times slower.
    """
    variables = model.continuous_value_vars
    if not variables:
        raise NoGradientError("this model has no continuous variables, so it has no score.")
    logp = model.logp()
    estimated, _ = estimated_terms(logp)
    if estimated:
        raise NoGradientError(_no_gradient(estimated, "only estimated"))
    try:
        gradients = grad(logp, variables, disconnected_inputs="ignore")
    except _GRADIENT_ERRORS as error:
        raise NoGradientError(_no_gradient(without_gradient(model, variables), "a black box")) from error
    quick, stable = over_draws(model, gradients), functools.cache(lambda: over_draws(model, gradients, mode=STABLE))

    def flat(slopes):
        return np.concatenate([f.reshape(len(f), -1) for f in slopes], axis=1)

    def scores(values):
        evaluated = flat(quick(values))
        return evaluated if np.isfinite(evaluated).all() else flat(stable()(values))

    return scores


def without_gradient(model, variables):
    """Return the names of the model's terms that cannot be differentiated."""
    terms = zip([*model.basic_RVs, *model.potentials], model.logp(sum=False), strict=True)
    names = []
    for variable, term in terms:
        try:
            grad(term.sum(), variables, disconnected_inputs="ignore")
        except _GRADIENT_ERRORS:
            names.append(variable.name)
    return names


def _no_gradient(names, why):
    return (
        f"the log density of this model has no gradient: {', '.join(names) or 'a term'} is {why}. A Stein discrepancy "
        'needs scores. With score="surrogate" they are learned from the log densities of the draws; or give your own '
        "as score=, a function from unconstrained draws (n, d) to gradients of the log density (n, d), or compare with "
        "a run that you trust by pk.mmd_test(idata, trusted)."
    )
