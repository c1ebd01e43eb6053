"""Kernel Bayes' rules: posteriors from samples of prior and joint law. Imports NumPy, SciPy and siblings."""

import copy
import warnings
from functools import cached_property

import numpy as np

from pymc_kernel.embeddings.calibration import calibration_of
from pymc_kernel.embeddings.choice import Choice
from pymc_kernel.embeddings.density_ratio import DensityRatio
from pymc_kernel.embeddings.draws import resample
from pymc_kernel.embeddings.gram import factorise
from pymc_kernel.embeddings.inputs import (
    as_sample,
    as_weights,
    check_positive,
    default_observed_kernel,
    latent_kernel,
    resolved,
    robust_scales,
    scales_of,
)
from pymc_kernel.embeddings.kernel_mean import KernelMean
from pymc_kernel.embeddings.mixture import Mixture
from pymc_kernel.embeddings.original import CRITERIA, SquaredRule, choose_delta, sum_rule
from pymc_kernel.embeddings.posterior import Regression
from pymc_kernel.embeddings.ridge import RidgePath, choose_regularization
from pymc_kernel.kernels.base import as_points
from pymc_kernel.parallel import one_blas_thread

__all__ = ["METHODS", "KernelBayesRule"]

METHODS = ("importance", "conditional", "original", "threshold")
_NORMALISATIONS = ("prior", "sum", "none")
_HUGE = 1e100
_FAR = 10.0  # spreads, beyond which the default kernel tells observations no longer apart
_FAR_OFF = 0.5  # standard deviations of the prior
_LENGTHS_DISAGREE = 0.2
_CRITERIA = {"latent": "evidence", "embedding": "leave-one-out"}
_LITTLE = 1e-3  # of the weight that a ratio should have
_RATIO_CAUTION = 2.0  # a ratio that is too smooth costs a posterior little, a noisy one costs it points


class KernelBayesRule:
    """Posterior of latent variables for any observation, from a sample of both and a sample of the prior.

    Fitted once, each new observation costs one product with an n x r matrix.

    Parameters
    ----------
    method : {"importance", "conditional", "original", "threshold"}
        "importance": regression of the latents on the observations, weighted by the ratio of prior to training
        marginal (Xu et al. 2022, equation 4 and algorithm 1). "conditional": the same without weights, for training
        latents drawn from the prior (Fukumizu et al. 2013, equation 19). "original": the squared regularisation of
        Fukumizu et al. (2013), figure 1. "threshold": "original"'s prior weights cut at zero, with the plain
        regularisation (Song, Zhu and Ren 2016); it is "importance" with a KuLSIF ratio at a regularisation that you
        name.
    observed_kernel : kernel, optional
        On the observations. By default Gaussian at the median distance plus linear, on coordinates in units of their
        spread (from quartiles) around their mean, and clipped ten spreads off. ``Product`` joins several variables,
        ``Linear`` is the trace kernel for flattened matrices, ``FeatureKernel`` takes learnt features.
    scales : sequence of float
        Factors of the median distance tried for the default ``observed_kernel``; the criterion of the
        regularisation decides. Each costs a fit.
    latent_kernel : kernel, optional
        On the latents, for the ratio and the embedding; by default Gaussian at the median distance, spread by spread.
    ratio : DensityRatio, optional
        How the ratio is estimated; by default ``DensityRatio(latent_kernel, caution=2)``.
    regularization : float, optional
        lambda of Xu et al., delta of Fukumizu et al.; by default chosen, see Notes.
    target : {"latent", "embedding", "marginal"}
        What it is chosen for: means of the latents, by the evidence of a Gaussian process, or their features, by
        leaving one out, which asks for less smoothing and serves expectations of other functions better. Draws and
        intervals do well with the first. "marginal", for "original", is the sources' criterion: posteriors averaged
        over held-out observations should be the held-out marginal. It does not notice a rule that overfits.
    ratio_regularization : float, optional
        eta of Xu et al., epsilon of Fukumizu et al.; by default chosen by the leave-one-out loss of the ratio.
    normalize : {"prior", "sum", "none"}
        The weights w of a ridge regression sum to less than one. "prior" gives what is missing to the prior, so that an
        observation that says nothing leaves the prior as it is; "sum" divides by the sum; "none" is the papers' form.
    literal : bool
        Only for "original": prior weights that sum to n instead of one, as figure 1 of Fukumizu et al. is printed;
        with it delta means what theirs does. Without, delta does not depend on n: delta_figure = n^2 delta.
    max_rank, tolerance
        Of the low-rank factors, see :func:`~pymc_kernel.embeddings.gram.factorise`.
    random_state : int or numpy.random.Generator

    Attributes
    ----------
    latent_ : ndarray (n, p)
    observed_ : ndarray (n, q)
    ratio_ : ndarray (n,)
        Weights of the training points, mean one for "importance" and "conditional".
    regularization_, ratio_regularization_ : float
    num_dropped_ : int
        Training pairs with NaN or infinite numbers, left out.
    rank_, left_out_
        Number of features of the observations, and share of the trace that they miss.

    Notes
    -----
    Fit: O(n r^2) time, O(n (r + p + q)) memory; condition: O(m n r). For "importance", "conditional" and "threshold"
    all regularisations of a grid come from one eigendecomposition. For "original", whose weights may be negative, it
    is five-fold cross-validation.

    A matrix that cannot be inverted gets a stronger regularisation, tenfold each time, and a warning (figure 1).

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_kernel.embeddings import KernelBayesRule
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(2000, 1))
    >>> rule = KernelBayesRule("conditional").fit(z, z + 0.5 * rng.normal(size=(2000, 1)))
    >>> rule.mean([[1.0]]).round(1)
    array([[0.8]])
    """

    def __init__(
        self,
        method="importance",
        *,
        observed_kernel=None,
        scales=(1.0,),
        latent_kernel=None,
        ratio=None,
        regularization=None,
        target="latent",
        ratio_regularization=None,
        normalize="prior",
        literal=False,
        max_rank=300,
        tolerance=1e-3,
        random_state=0,
    ):
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}.")
        if normalize not in _NORMALISATIONS:
            raise ValueError(f"normalize must be one of {', '.join(map(repr, _NORMALISATIONS))}, got {normalize!r}.")
        check_positive(regularization=regularization, ratio_regularization=ratio_regularization)
        allowed = CRITERIA if method == "original" else CRITERIA[:2]
        if target not in allowed:
            raise ValueError(f'target of "{method}" must be one of {", ".join(map(repr, allowed))}, got {target!r}.')
        if literal and method != "original":
            raise ValueError('literal=True belongs to method="original", whose figure 1 it follows to the letter.')
        if method == "threshold" and ratio_regularization is None:
            raise ValueError('method="threshold" needs ratio_regularization; "importance" chooses it by itself.')
        if ratio is not None and method in ("original", "threshold", "conditional"):
            raise ValueError(f'ratio is used by method="importance" alone; "{method}" takes its prior weights itself.')
        self.method = method
        self.observed_kernel = observed_kernel
        self.scales = tuple(scales)
        if not self.scales or not all(np.isscalar(s) and np.isfinite(s) and s > 0 for s in self.scales):
            raise ValueError(f"scales must be positive numbers, at least one, got {scales!r}.")
        self.latent_kernel = latent_kernel
        self.ratio = ratio
        self.regularization = regularization
        self.target = target
        self.ratio_regularization = ratio_regularization
        self.normalize = normalize
        self.literal = literal
        self.max_rank = max_rank
        self.tolerance = tolerance
        self.random_state = random_state

    # -- fit -----------------------------------------------------------------------------------------------

    @one_blas_thread
    def fit(self, latent, observed, prior=None, prior_weights=None, *, weights=None) -> "KernelBayesRule":
        """Learn from pairs and, where the prior is not the law of the training latents, from a sample of the prior.

        Parameters
        ----------
        latent : array_like (n, p)
        observed : array_like (n, q)
            Row i was simulated from, or seen with, row i of ``latent``.
        prior : array_like (l, p), optional
            Sample of the prior; without it the training latents are the prior.
        prior_weights : array_like (l,), optional
            May be negative; equal by default.
        weights : array_like (n,), optional
            For "importance": the ratio of the prior's density to that of the training latents, at each of them, up to a
            constant, where it is known; it is estimated otherwise.

        Raises
        ------
        ValueError
            For rows that do not match, fewer than two complete pairs, or a prior of another dimension.
        """
        latent, observed, weights = self._complete_pairs(latent, observed, weights)
        rng = np.random.default_rng(self.random_state)
        self.latent_, self.observed_ = latent, observed
        self.latent_kernel_ = latent_kernel(self.latent_kernel, latent, rng)
        self._set_prior(prior, prior_weights)
        self.ratio_ = self._training_weights(rng, weights)
        self._set_place()
        if self.method == "original":
            self._set_kernel(self._observed_kernels(rng)[0], rng)
            self._fit_original(rng)
        else:
            self._fit_ridge(rng)
        for name in ("regression", "choice", "_observed_scales"):
            self.__dict__.pop(name, None)  # of an earlier fit
        return self

    def _observed_kernels(self, rng):
        if self.observed_kernel is not None:
            return [resolved(self.observed_kernel, self.observed_, rng)]
        return [default_observed_kernel(self._placed(self.observed_), rng, factor) for factor in self.scales]

    def _set_kernel(self, kernel, rng):
        self.observed_kernel_ = kernel
        self._factor = factorise(kernel, self._placed(self.observed_), self.max_rank, self.tolerance, rng)
        self.rank_, self.left_out_ = self._factor.rank, self._factor.left_out

    def _complete_pairs(self, latent, observed, weights):
        latent, observed = as_points(latent, "latent", finite=False), as_points(observed, "observed", finite=False)
        if len(latent) != len(observed):
            raise ValueError(
                f"latent has {len(latent)} rows and observed {len(observed)}: they must be pairs, one row each."
            )
        if weights is not None:
            if self.method != "importance":
                raise ValueError(f'weights are used by method="importance" alone, got method="{self.method}".')
            weights = as_weights(weights, len(latent), "weights")
            if (weights < 0.0).any():
                raise ValueError("weights must not be negative: they are a ratio of densities.")
        # Numbers whose squares overflow are as good as infinite.
        complete = (np.abs(latent) < _HUGE).all(axis=1) & (np.abs(observed) < _HUGE).all(axis=1)
        self.num_dropped_ = int((~complete).sum())
        if complete.sum() < 2:
            raise ValueError(
                f"only {complete.sum()} of {len(latent)} pairs of latent and observed are complete; at least two are "
                "needed."
            )
        if self.num_dropped_:
            warnings.warn(
                f"{self.num_dropped_} of {len(latent)} pairs have NaN or infinite numbers and are left out.",
                stacklevel=4,
            )
        latent, observed = latent[complete], observed[complete]
        weights = None if weights is None else weights[complete]
        constant = np.flatnonzero(np.ptp(observed, axis=0) == 0.0)
        if len(constant):
            what = "all columns are" if len(constant) == observed.shape[1] else f"columns {constant.tolist()} are"
            warnings.warn(f"{what} constant in observed: they say nothing about the latents.", stacklevel=4)
        return latent, observed, weights

    def _set_prior(self, prior, prior_weights):
        if self.method == "conditional" and not (prior is None and prior_weights is None):
            raise ValueError(
                'method="conditional" takes the training latents for draws of the prior; with another prior use '
                '"importance".'
            )
        if prior is None:
            if prior_weights is not None:
                prior, prior_weights = self.latent_, as_weights(prior_weights, len(self.latent_), "prior_weights")
            elif self.method in ("original", "threshold"):
                prior = self.latent_
        if prior is None:
            self._prior, self._prior_weights = None, None
            return
        prior = as_sample(prior, "prior")
        if prior.shape[1] != self.latent_.shape[1]:
            raise ValueError(
                f"prior has {prior.shape[1]} dimensions and latent {self.latent_.shape[1]}; they must agree."
            )
        self._prior, self._prior_weights = prior, as_weights(prior_weights, len(prior), "prior_weights")

    def _training_weights(self, rng, known):
        """Return the weights of the training points, which carry the prior."""
        n = len(self.latent_)
        self.ratio_regularization_, self._spread_weights = None, None
        if known is not None:
            return known / known.mean()
        if self.method == "conditional" or (self.method == "importance" and self._prior is None):
            return np.ones(n)
        if self.method == "importance":
            ratio = self.ratio
            if ratio is None:
                ratio = DensityRatio(
                    self.latent_kernel_,
                    regularization=self.ratio_regularization,
                    caution=_RATIO_CAUTION,
                    max_rank=self.max_rank,
                    tolerance=self.tolerance,
                    random_state=rng,
                )
            ratio.fit(self._prior, self.latent_, self._prior_weights)
            self.ratio_regularization_ = ratio.regularization_
            weights, self._spread_weights = ratio.ratio_, ratio.least_loss_ratio_
        else:
            factor = factorise(self.latent_kernel_, self.latent_, self.max_rank, self.tolerance, rng)
            weights, self.ratio_regularization_ = sum_rule(
                factor, self._prior, self._prior_weights, self.ratio_regularization
            )
            if self.method == "threshold":
                weights = np.maximum(0.0, weights) * n
        self._check_overlap(weights)
        return weights * (n / weights.sum()) if self.method == "importance" else weights

    def _check_overlap(self, weights):
        """Refuse a prior where there are no training latents, and warn where its mean cannot be reached from them."""
        wanted = 1.0 if self.method == "original" else len(weights)
        if not weights.sum() > _LITTLE * wanted:
            raise ValueError(
                "the ratio of prior to training latents is zero at every training point: the prior lies where there "
                "are no training latents. Take training latents that cover the prior."
            )
        mean, spread = self._prior_weights @ self._prior, scales_of(self._prior, _positive(self._prior_weights))[1]
        away = np.abs(weights @ self.latent_ / weights.sum() - mean) / spread
        if away.max() > _FAR_OFF:
            warnings.warn(
                f"weighted to follow the prior, the training latents still have a mean {away.max():.2g} standard "
                "deviations of the prior off: they do not cover it, and the posterior is extrapolated.",
                stacklevel=5,
            )

    def _set_place(self):
        """Set what the observations are moved by, and within what bounds the default kernel looks at them."""
        width = self.observed_.shape[1]
        self._location, self._bounds = np.zeros(width), (np.full(width, -np.inf), np.full(width, np.inf))
        if self.observed_kernel is None:
            middle, spread = robust_scales(self.observed_)
            # A simulation gone wild would carry all of the linear kernel's trace, and leave no rank to the others.
            self._bounds = middle - _FAR * spread, middle + _FAR * spread
            self._location = scales_of(self._placed(self.observed_), _positive(self.ratio_))[0]

    def _placed(self, observed):
        return np.clip(observed, *self._bounds) - self._location

    def _fit_ridge(self, rng):
        """Fit with each kernel of the choice, and keep the best by the evidence or by leaving one out."""
        kernels, best = self._observed_kernels(rng), np.inf
        choosing = self.regularization is None or len(kernels) > 1
        targets = self._targets(self.target) if choosing else None
        for kernel in kernels:
            self._set_kernel(kernel, rng)
            path, strength, loss = RidgePath.of(self._factor.features, self.ratio_), self.regularization, 0.0
            if choosing:
                found, loss = choose_regularization(path, targets, _CRITERIA[self.target])
                strength = found if strength is None else strength
            if loss < best:
                best, kept = loss, (kernel, self._factor, path, strength)
        self.observed_kernel_, self._factor, self._path, self.regularization_ = kept
        self.rank_, self.left_out_ = self._factor.rank, self._factor.left_out

    def _targets(self, kind):
        """Return what is predicted, around what predictions fall back to: scaled latents, or features."""
        if kind == "embedding":
            factor = factorise(self.latent_kernel_, self.latent_, self.max_rank, self.tolerance)
            if self.normalize == "none":
                return factor.features
            if self._prior is None:
                return factor.features - self.ratio_ @ factor.features / self.ratio_.sum()
            return factor.features - self._prior_weights @ factor(self._prior)
        _, scale = scales_of(self.latent_, _positive(self.ratio_))
        return (self.latent_ - self._fallback()) / scale

    def _fallback(self):
        return np.zeros(self.latent_.shape[1]) if self.normalize == "none" else self._prior_mean()

    def _prior_mean(self):
        if self._prior is None:
            return self.ratio_ @ self.latent_ / self.ratio_.sum()
        return self._prior_weights @ self._prior

    def _fit_original(self, rng):
        scale = len(self.latent_) if self.literal else 1.0
        self._path = SquaredRule.of(self._factor.features, scale * self.ratio_)
        self.regularization_ = self.regularization
        if self.regularization is None:
            kind = "embedding" if self.target == "marginal" else self.target
            self.regularization_ = choose_delta(self._factor.features, self._targets(kind), scale, self.target, rng)

    # -- condition ------------------------------------------------------------------------------------------

    @one_blas_thread
    def weights(self, observed) -> np.ndarray:
        """Return the weights (m, n) of the training points for ``observed`` (m, q), before any normalisation."""
        rows = self._as_observed(observed)
        query = self._factor(self._placed(rows))
        return self._path.coefficients(query, self.regularization_)

    def _as_observed(self, observed):
        if not hasattr(self, "_factor"):
            raise ValueError("this rule has learnt nothing yet: call fit(latent, observed) first.")
        observed = np.asarray(observed, dtype=float)
        width = self.observed_.shape[1]
        if observed.ndim == 0 or (observed.ndim == 1 and observed.shape[0] == width):
            observed = observed.reshape(1, -1)
        observed = as_sample(observed, "observed")
        if observed.shape[1] != width:
            raise ValueError(f"observed has {observed.shape[1]} columns, the training observations have {width}.")
        return observed

    @one_blas_thread
    def condition(self, observed) -> KernelMean:
        """Return the posterior embedding for ``observed`` (q,) or the embeddings for (m, q), at once.

        Its points are the training latents, followed by the sample of the prior where that takes what is missing of the
        weights (``normalize="prior"``).
        """
        rows = self._as_observed(observed)
        weights = self.weights(rows)
        points = self.latent_
        if self.normalize == "sum":
            weights = weights / _guarded(weights.sum(axis=1))[:, None]
        elif self.normalize == "prior":
            missing = 1.0 - weights.sum(axis=1, keepdims=True)
            if self._prior is None:
                weights = weights + missing * (self.ratio_ / self.ratio_.sum())
            else:
                points = np.concatenate([points, self._prior])
                weights = np.concatenate([weights, missing * self._prior_weights], axis=1)
        single = np.ndim(observed) < 2 and len(rows) == 1
        return KernelMean(points, weights[0] if single else weights, self.latent_kernel_)

    @one_blas_thread
    def mean(self, observed) -> np.ndarray:
        """Return posterior means (m, p) for ``observed`` (m, q)."""
        weights = self.weights(observed)
        first = weights @ self.latent_
        if self.normalize == "prior":
            return first + (1.0 - weights.sum(axis=1, keepdims=True)) * self._prior_mean()
        if self.normalize == "sum":
            return first / _guarded(weights.sum(axis=1))[:, None]
        return first

    # -- draws -----------------------------------------------------------------------------------------------

    @cached_property
    @one_blas_thread
    def regression(self) -> Regression:
        """The regression that draws and intervals come from: means, and residuals around them."""
        if self.method == "original":
            raise ValueError(
                'draws by residuals need weights that are not negative; use method="importance", or take intervals and '
                "draws from condition(observed)."
            )
        if self.normalize != "prior":
            raise ValueError(
                'draws by residuals need means that fall back to the prior: normalize="prior"; or take intervals and '
                "draws from condition(observed)."
            )
        # Means want a smooth ratio; the spread of residuals is an average and wants one with little bias.
        weights = self.ratio_ if self._spread_weights is None else self._spread_weights
        return Regression(
            self._factor.features,
            self.latent_,
            scales_of(self.latent_, _positive(self.ratio_))[1],
            self._scaled(self.observed_),
            self.ratio_,
            weights,
            self.regularization_,
            None if self._prior is None else self._prior_mean(),
        )

    @cached_property
    @one_blas_thread
    def choice(self) -> Choice:
        """Neighborhoods and smoothing of the residuals, chosen for observations from everywhere."""
        rng = np.random.default_rng(self.random_state)
        return self.regression.cross_fit(rng).choose(self.regression.typical_cases(rng), equal=True)

    def query(self, observed) -> tuple[np.ndarray, np.ndarray]:
        """Return features (m, r) and scaled observations (m, q) of ``observed`` (m, q)."""
        rows = self._as_observed(observed)
        return self._factor(self._placed(rows)), self._scaled(rows)

    @cached_property
    def _observed_scales(self):
        return robust_scales(self.observed_)

    def _scaled(self, observed):
        middle, spread = self._observed_scales
        return (observed - middle) / spread

    def subset(self, inside: np.ndarray) -> "KernelBayesRule":
        """Return a rule with the same settings, fitted to the training points ``inside`` (indices) alone."""
        rule = copy.copy(self)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # said at the first fit
            known = None if self.method == "conditional" else self.regression.residual_weights[inside]
            return rule.fit(self.latent_[inside], self.observed_[inside], weights=known)

    @one_blas_thread
    def posteriors(self, observed) -> list[Mixture]:
        """Return the posterior for each of ``observed`` (m, q), as a mixture of normal distributions."""
        features, scaled = self.query(observed)
        fit, predictive = self.regression.predictive(self.choice.settings)
        places = self.regression.places(self.choice.settings.metric, features, scaled)
        scale = self.regression.scale
        # Residuals from everywhere are the same for all.
        same = predictive.at(places[0]) if self.choice.settings.share == 1.0 else None
        return [
            (same or predictive.at(place)).mapped(scale, mean)
            for place, mean in zip(places, fit.means(features), strict=True)
        ]

    @one_blas_thread
    def sample(self, observed, num_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Return posterior draws (m, num_draws, p) for ``observed`` (m, q)."""
        return np.stack([posterior.sample(num_draws, rng) for posterior in self.posteriors(observed)])

    @one_blas_thread
    def interval(self, observed, probability: float = 0.94, check: bool = False) -> np.ndarray:
        """Return central marginal intervals (m, p, 2) for ``observed`` (m, q).

        Parameters
        ----------
        observed : array_like (m, q)
        probability : float
        check : bool
            Compare with the intervals of the nearest probability vector in the RKHS, and warn where their lengths
            differ by more than a fifth: then one of the two ways from signed weights to a distribution is wrong.
            Costs a quadratic programme for each observation.
        """
        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability must be in (0, 1), got {probability!r}.")
        rows = self._as_observed(observed)
        tail = 0.5 * (1.0 - probability)
        edges = np.array([tail, 1.0 - tail])
        out = np.moveaxis(np.stack([posterior.quantiles(edges) for posterior in self.posteriors(rows)]), 1, 2)
        if check:
            self._compare(out, rows, probability)
        return out

    def _compare(self, intervals, rows, probability):
        """Warn where the embedding's own intervals, from the nearest non-negative weights, have other lengths."""
        chosen = self.regularization_
        try:
            # The embedding asks for less smoothing than the means do.
            self.regularization_, _ = choose_regularization(self._path, self._targets("embedding"), "leave-one-out")
            other = self.condition(np.atleast_2d(rows)).nonnegative().interval(probability)
        finally:
            self.regularization_ = chosen
        apart = float(np.exp(np.max(np.abs(np.log(np.ptp(other, axis=2) / np.ptp(intervals, axis=2))))))
        if apart > 1.0 + _LENGTHS_DISAGREE:
            warnings.warn(
                f"intervals from residuals and from the nearest non-negative weights differ up to {apart:.2g}-fold in "
                "length: trust neither without a check, such as calibration() or more simulations.",
                stacklevel=4,
            )

    @one_blas_thread
    def calibration(self, latent=None, observed=None, *, num_draws: int = 200, num_cases: int = 1000, rng=None):
        """Return how often truths fall where the posteriors say, for pairs that the rule has not seen.

        Parameters
        ----------
        latent, observed : array_like (m, p), (m, q), optional
            Pairs with latents from the prior. Without them the training pairs are used, in five folds of which each
            is held out in turn and the regression fitted to all else, with the kernel, the regularization and the
            settings of the whole fit.
        num_draws : int
            From each posterior.
        num_cases : int
            Training pairs used, where no others are given; drawn by their weights.
        rng : numpy.random.Generator, optional

        Returns
        -------
        Calibration
            Ranks, coverage of marginal intervals, TARP coverage; :func:`pymc_kernel.plot_calibration` draws it.

        Notes
        -----
        With pairs: one product with an n x r matrix and ``num_draws`` look-ups a case. Without: five regressions on
        features that are there, O(n r^2), and as many look-ups.
        """
        rng = np.random.default_rng(0) if rng is None else rng
        if (latent is None) != (observed is None):
            raise ValueError("give latent and observed both, or neither for leave-one-out calibration.")
        if latent is None:
            return self._cross_calibration(num_cases, num_draws, rng)
        latent, rows = as_sample(latent, "latent"), self._as_observed(observed)
        if latent.shape != (len(rows), self.latent_.shape[1]):
            raise ValueError(f"latent must have shape {(len(rows), self.latent_.shape[1])}, got {latent.shape}.")
        return calibration_of(self.sample(rows, num_draws, rng), latent, rng)

    def _cross_calibration(self, num_cases, num_draws, rng):
        """Return the calibration on folds that are held out in turn, with the settings of the whole fit."""
        regression, settings = self.regression, self.choice.settings
        cases = np.unique(resample(regression.shares, min(num_cases, len(self.latent_)), rng))
        cross_fit = regression.cross_fit(rng)
        draws = np.empty((len(cases), num_draws, self.latent_.shape[1]))
        for i, case in enumerate(cases):
            mixture, error = cross_fit.prediction(settings, case)
            mean = self.latent_[case] - regression.scale * error
            draws[i] = mixture.mapped(regression.scale, mean).sample(num_draws, rng)
        return calibration_of(draws, self.latent_[cases], rng)


def _positive(weights):
    """Return the positive part of weights that may be negative, None where nothing is left."""
    positive = np.maximum(weights, 0.0)
    return positive if positive.sum() > 0.0 else None


def _guarded(totals):
    if not (totals > 0.0).all():
        raise ValueError(
            'the weights of an observation sum to zero or less, so they cannot be divided by it; use normalize="prior".'
        )
    return totals
