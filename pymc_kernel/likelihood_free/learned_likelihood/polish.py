"""All weights at once: a penalized likelihood, maximized from where the stages ended. Imports NumPy and SciPy."""

from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky
from scipy.optimize import minimize

from pymc_kernel.likelihood_free.learned_likelihood.model import Weights, log_terms, pull_back, residuals_of
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint
from pymc_kernel.likelihood_free.learned_likelihood.stages import StagedFit
from pymc_kernel.likelihood_free.learned_likelihood.summaries import Observed
from pymc_kernel.linalg import triangular_solution

__all__ = ["Data", "Polish"]

_MAX_LOG_SD = 30.0


class Data(NamedTuple):
    """Simulations: coordinates of parameters, summaries, weights."""

    z: np.ndarray
    """(n, d)."""
    spread: Observed
    """Transformed summaries, whole numbers spread over their intervals."""
    cells: Observed
    """Transformed summaries, whole numbers as intervals."""
    weights: np.ndarray
    """(n,), of mean one."""

    def take(self, rows) -> "Data":
        """Return some of them."""
        return Data(self.z[rows], self.spread.take(rows), self.cells.take(rows), self.weights[rows])

    def observed(self, residuals) -> Observed:
        """Return the summaries as these residuals can score them."""
        return self.spread if isinstance(residuals, Joint) else self.cells


class Polish:
    """The penalized likelihood of a staged fit as a function of one vector, in coordinates of about unit curvature."""

    def __init__(self, staged: StagedFit, data: Data):
        self.design, self.data, self.cases = staged.design, data, data.weights
        self.weights = staged.weights
        self.columns = self._columns(staged)

    def _columns(self, staged):
        """Return for each column of weights: part, its number, active features, penalty, root of the curvature."""
        found, spread = [], np.exp(-2.0 * (self.design.values @ self.weights.log_sd))
        rest = np.exp(-2.0 * (self.design.values @ self.weights.log_rest))
        plain = self.design.plain_gram(self.cases)
        for j in range(self.weights.means.shape[1]):
            gram = self.design.gram(self.cases * spread[:, j] * rest[:, j])
            found.append(self._column("means", j, staged.mean_precisions[j], gram))
            found.append(self._column("log_sd", j, 4.0 * staged.log_sd_precisions[j], 2.0 * plain))
            if j:
                found.append(self._column("log_rest", j, 4.0 * staged.log_rest_precisions[j], 2.0 * plain))
        c = self.weights.coefficients.shape[0]
        for k, penalty in enumerate(staged.coefficient_penalties.T):
            active = np.flatnonzero(np.isfinite(penalty))
            curvature = plain[:c, :c][np.ix_(active, active)] + np.diag(penalty[active])
            found.append(("coefficients", k, active, penalty[active], cholesky(curvature, lower=True)))
        return found

    def _column(self, part, number, precisions, gram):
        penalty = np.zeros(len(gram))
        for precision, block in zip(precisions, self.design.blocks, strict=True):
            penalty[block.start : block.stop] = precision
        active = np.flatnonzero(np.isfinite(penalty))
        curvature = gram[np.ix_(active, active)] + np.diag(penalty[active] + 1e-8 * np.trace(gram) / len(gram))
        return part, number, active, penalty[active], cholesky(curvature, lower=True)

    def pack(self, weights: Weights) -> np.ndarray:
        """Return the vector of weights."""
        return np.concatenate([root.T @ getattr(weights, part)[active, k] for part, k, active, _, root in self.columns])

    def unpack(self, vector) -> Weights:
        """Return the weights of a vector."""
        out, at = Weights(*[np.zeros_like(p) for p in self.weights.parts()]), 0
        for part, k, active, _, root in self.columns:
            piece = vector[at : at + len(active)]
            getattr(out, part)[active, k] = triangular_solution(root, piece, transposed=True)
            at += len(active)
        return out

    def loss(self, vector, residuals):
        """Return minus the penalized log likelihood, and its gradient."""
        weights = self.unpack(vector)
        parts = self.design.entries(weights)
        terms = log_terms(parts, self.data.observed(residuals), residuals)
        total, pulls = -self.cases @ terms.log_density, pull_back(parts, terms)
        gradient, at = np.empty(len(vector)), 0
        weighted = [pull * -self.cases[:, None] for pull in pulls.parts()]
        back = [self.design.values[:, : len(w)].T @ p for w, p in zip(weights.parts(), weighted, strict=True)]
        back = Weights(*back)
        for part, k, active, penalty, root in self.columns:
            own = getattr(weights, part)[active, k]
            total += 0.5 * penalty @ own**2
            raw = getattr(back, part)[active, k] + penalty * own
            gradient[at : at + len(active)] = triangular_solution(root, raw)
            at += len(active)
        if not np.isfinite(total) or not np.isfinite(gradient).all():
            return 1e300, np.zeros_like(gradient)
        return total, gradient

    def steps(self, weights: Weights, residuals, iterations: int) -> Weights:
        """Return weights after some iterations with these residuals."""
        options = {"maxiter": iterations, "maxcor": 20}
        found = minimize(self.loss, self.pack(weights), (residuals,), "L-BFGS-B", jac=True, options=options)
        return self.unpack(found.x)

    def noise(self, weights: Weights) -> np.ndarray:
        """Return residuals (n, q)."""
        return residuals_of(self.design.entries(weights), self.data.spread.values)[1]
