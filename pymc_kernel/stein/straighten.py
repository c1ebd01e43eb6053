"""Coordinates in which one length scale suits all draws.

Any fixed smooth map keeps a Stein kernel valid, and these depend on a few fitted numbers only, as whitening does, so
that tests keep their level. What each of them gains is measured by ``python -m benchmarks.ablations``.

**Funnels.** The scale of some coordinates depends on another, as that of effects on the logarithm of their standard
deviation. Scores then have tails so heavy that a discrepancy measures the funnel's neck alone. "Driven" coordinates i
are divided by a scale that depends on their "driver" j:

    x_i' = (x_i - m_i) exp(-g_i),   g_i = a_i + b_i u + c_i sqrt(1 + u^2),   u = (x_j - center) / spread,

m_i linear in "free" coordinates k, neither driven nor j. For a density p with scores s,

    s_i' = s_i exp(g_i),   s_j' = s_j + sum_i dg_i/dx_j (s_i (x_i - m_i) + 1),   s_k' = s_k + sum_i s_i dm_i/dx_k.

The scale is that of the scores: given the driver, E s_i = 0 and E s_i^2 is the Fisher information.

**Tails.** In the long tail of a skew distribution, as that of the logarithm of a scale, scores are small and draws far
apart in units of the length scale, so that a discrepancy hardly detects errors there. Each coordinate may be stretched:

    T(u) = (exp(a w) - exp(-b w)) / (a + b),   w = asinh(u),

which grows as u^a above and as |u|^b below; a = b = 1 leaves it as it is. For a density with score s in u,

    s' = (s - T'' / T') / T'.
"""

import numpy as np

_FEWEST_DRAWS = 50  # with fewer, scales cannot be estimated
_EVIDENCE = 20.0  # twice the log-likelihood ratio; with 4 log d for all pairs, a false alarm in exp(10) normal samples
_FLOOR = 0.05  # added to squared scores before the logarithm, in medians: a score may happen to be zero
_GAIN = 10.0, 5.0  # nats by which all draws must come closer to a normal distribution: per step, and per coordinate
_MAX_LOG_SCALE = 50.0  # a coordinate whose scale changes by more is left alone
_BOUND = 3.0  # of coordinates in robust units, where drivers are looked for: one outlier must not look like one
_RIDGE = 1e-6  # for columns of length one
_MAX_ITERATIONS, _TOLERANCE = 20, 1e-3  # of the robust regression
_POWERS = 2.0 ** (0.5 * np.arange(-4, 3))  # of tails; a half is right for an exponential one
_MOST_DRAWS = 2000  # that the powers are chosen by
_FEWEST_FOR_TAILS = 200  # with 100, a test of the same draws at 5 % rejected 8 %
_DISAGREEMENT = 3.0  # factor by which E[s x] may be off minus one: draws 1.7 times too wide or too narrow
_LARGEST = 1e12  # of a coordinate in robust units, whose squared fourth power is a floating-point number still


def straighten(draws: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return draws and scores (n, d) in coordinates whose conditional scales are constant.

    A driver's coordinates are divided under two conditions. Division lowers 1/2 log det E[s s'] + E log det dx'/dx,
    which by Stam's inequality is smallest for normal x', by more than chance explains. It also lowers 1/2 log det
    cov(x') - E log det dx'/dx, so draws and scores agree: scores of the wrong draws must not bend the map. Otherwise
    draws and scores are returned unchanged, as for normal draws. O(n d^2) time.
    """
    n, d = draws.shape
    if d == 1 or n < max(_FEWEST_DRAWS, 2 * d + 1):
        return draws, scores
    driver = choose_drivers(draws, scores)
    for j in np.unique(driver[driver >= 0]):
        driven, free = np.flatnonzero(driver == j), np.flatnonzero((driver < 0) & (np.arange(d) != j))
        best = divide(draws, scores, j, driven, free)
        while len(driven) > 1:
            # Given all effects their mean has a narrow distribution in the neck, too, so that it seems to be driven,
            # but it must not be divided. Its scores and those of its effects sum to nearly zero, and of such a sum
            # the coordinate with the largest part is set free.
            pulled = best[1][:, driven]
            length = np.sqrt((pulled**2).mean(axis=0))
            pulled = pulled / np.where(length > 0.0, length, 1.0)
            mean = np.abs(np.linalg.eigh(pulled.T @ pulled)[1][:, 0]).argmax()
            fewer, free = np.delete(driven, mean), np.append(free, driven[mean])
            trial = divide(draws, scores, j, fewer, free)
            if _log_information(trial[1]) + trial[2] >= _log_information(best[1]) + best[2]:
                break
            best, driven = trial, fewer
        moved, pulled, log_det = best
        gain = _log_information(scores) - _log_information(pulled) - log_det
        spread = _log_information(moved - moved.mean(axis=0)) - log_det
        agreed = spread < _log_information(draws - draws.mean(axis=0))
        if agreed and n * gain > _GAIN[0] + _GAIN[1] * len(driven):
            draws, scores = moved, pulled
    return draws, scores


def choose_drivers(draws: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return for each coordinate (d,) its driver, the one that its scale depends on most; -1 for none.

    A driver has none itself; if each of two may drive the other, the stronger evidence wins.
    """
    n, d = draws.shape
    center, spread = _robust(draws)
    u = (draws - center) / spread
    u /= np.sqrt(1.0 + (u / _BOUND) ** 2)
    linear = u - u.mean(axis=0)
    linear /= linear.std(axis=0)
    bent = np.sqrt(1.0 + linear**2)
    bent -= bent.mean(axis=0)
    bent -= linear * (linear * bent).mean(axis=0)
    bent /= np.maximum(bent.std(axis=0), np.finfo(float).tiny)  # two values only: no scale to fit
    sizes = _log_squares(scores)
    sizes -= sizes.mean(axis=0)
    variance = np.maximum((sizes**2).mean(axis=0), np.finfo(float).tiny)
    share = ((linear.T @ sizes / n) ** 2 + (bent.T @ sizes / n) ** 2) / variance
    np.fill_diagonal(share, 0.0)
    evidence = -n * np.log1p(-np.minimum(share, 1.0 - 1e-12))
    evidence[evidence < _EVIDENCE + 4.0 * np.log(d)] = 0.0
    driver = np.full(d, -1)
    is_driver = np.zeros(d, dtype=bool)
    for pair in np.argsort(-evidence, axis=None, kind="stable")[: np.count_nonzero(evidence)]:
        j, i = divmod(pair, d)
        if driver[i] < 0 and driver[j] < 0 and not is_driver[i]:
            driver[i], is_driver[j] = j, True
    return driver


def divide(draws, scores, driver: int, driven: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return draws and scores with the coordinates ``driven`` divided by their scale, and E log det dx'/dx.

    Scales come from a regression of log squared scores, repeated on the residuals. Slopes of the centers minimize the
    squared scores that free coordinates are left with. Constants come from draws and scores together: for a normal
    distribution with scale e^g, x + e^(2 g) s is its center at every draw. They are not fitted by least squares: only
    draws in the neck would determine them, as many scores as there are centers would be nearly zero, and a test of the
    same draws would reject too often.
    """
    center, spread = _robust(draws[:, driver])
    u = (draws[:, driver] - center) / spread
    bent = np.sqrt(1.0 + u**2)
    basis = np.column_stack([np.ones(len(u)), u, bent])
    fits = np.stack([_fit_log_scale(basis, scores[:, i]) for i in driven], axis=1)
    fits[:, np.abs(basis @ fits).max(axis=0) >= _MAX_LOG_SCALE] = 0.0
    growth, s = basis @ fits, scores[:, driven]
    slopes = -_least_squares(s, scores[:, free]).T
    x = draws[:, driven] - draws[:, free] @ slopes
    weights = np.exp(2.0 * (growth.min(axis=0) - growth))
    weights /= weights.sum(axis=0)
    pulled = np.exp(2.0 * growth) * s
    middle, mean = (weights * x).sum(axis=0), (weights * pulled).sum(axis=0)
    variance = (weights * (pulled - mean) ** 2).sum(axis=0)
    # So far the scale is known only up to a factor.
    factor = -(weights * (x - middle) * (pulled - mean)).sum(axis=0) / np.where(variance > 0.0, variance, 1.0)
    off = x - middle - factor * mean
    moved, pulled = draws.copy(), scores.copy()
    moved[:, driven], pulled[:, driven] = off * np.exp(-growth), s * np.exp(growth)
    pulled[:, free] += s @ slopes.T
    slope = fits[1] + (u / bent)[:, None] * fits[2]
    pulled[:, driver] += ((s * off + 1.0) * slope).sum(axis=1) / spread
    return moved, pulled, float(-growth.mean(axis=0).sum())


def _least_squares(columns, targets):
    length = np.sqrt((columns**2).sum(axis=0))
    length[length == 0.0] = 1.0
    columns = columns / length
    normal = columns.T @ columns + _RIDGE * np.eye(columns.shape[1])
    return np.linalg.solve(normal, columns.T @ targets) / length[:, None]


def _fit_log_scale(basis, scores):
    solve = np.linalg.pinv(basis)
    log_scale = np.zeros(basis.shape[1])
    for _ in range(_MAX_ITERATIONS):
        left = scores * np.exp(np.clip(basis @ log_scale, -_MAX_LOG_SCALE, _MAX_LOG_SCALE))
        change = -0.5 * solve @ _log_squares(left)
        change[0] = 0.0
        log_scale += change
        if np.abs(change).max() < _TOLERANCE:
            break
    log_scale[0] = -np.median(basis @ log_scale)
    return log_scale


def _robust(draws):
    """Return medians, and half of the width that holds 68 % around them: standard deviations of normal draws."""
    center = np.median(draws, axis=0)
    off = np.abs(draws - center)
    spread = np.quantile(off, 0.6827, axis=0)
    return center, np.where(spread > 0.0, spread, off.max(axis=0))


def _log_squares(scores):
    squares = scores**2
    floor = _FLOOR * np.median(squares, axis=0)
    return np.log(squares + np.maximum(floor, np.finfo(float).tiny))


def _log_information(scores):
    """Return 1/2 log det E[s s'], coordinates whose scores are all zero left out."""
    length = np.sqrt((scores**2).mean(axis=0))
    scaled, length = scores[:, length > 0.0] / length[length > 0.0], length[length > 0.0]
    matrix = scaled.T @ scaled / len(scores) + _RIDGE * np.eye(len(length))
    return 0.5 * np.linalg.slogdet(matrix)[1] + np.log(length).sum()


def normal_margins(draws: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return draws and scores (n, d), with those coordinates stretched whose margins are clearly not normal.

    The powers with the smallest E[s'^2] var(x') are taken: for exact draws it is at least one, and one for a normal
    distribution alone (Cauchy and Schwarz, since E[s' x'] is minus one). Where that is far from minus one, the bound
    does not hold, and the coordinate is not changed; the test rejects its scores in any case. Units do not matter.
    Draws and scores are returned unchanged where no coordinate gains enough, as for normal draws. O(n d) time.
    """
    if len(draws) < _FEWEST_FOR_TAILS:
        return draws, scores
    columns = [_stretched(draws[:, i], scores[:, i]) for i in range(draws.shape[1])]
    stretched = [i for i, column in enumerate(columns) if column is not None]
    if not stretched:
        return draws, scores
    draws, scores = draws.copy(), scores.copy()
    for i in stretched:
        draws[:, i], scores[:, i] = columns[i]
    return draws, scores


def _stretched(draws, scores):
    """Return a coordinate and its scores (n,) after the best map, None where that gains too little."""
    center, spread = _robust(draws)
    if not np.abs(draws - center).max() < _LARGEST * spread:
        return None
    u, s = (draws - center) / spread, scores * spread
    if not 1.0 / _DISAGREEMENT < -(s * (u - u.mean())).mean() < _DISAGREEMENT:
        return None
    every = -(-len(u) // _MOST_DRAWS)
    few = u[::every], s[::every]
    with np.errstate(over="ignore"):  # a power for which numbers become infinite is not the best
        smallest, a, b = min((_distance(*few, a, b), a, b) for a in _POWERS for b in _POWERS)
        # Two free numbers gain as much in one of exp(10) normal samples.
        if not len(few[0]) * (_distance(*few, 1.0, 1.0) - smallest) > _GAIN[0]:
            return None
    return _moved(u, s, a, b)


def _distance(u, scores, a, b):
    """Return 1/2 log(E[s'^2] var(x')), infinite where scores are zero."""
    moved, pulled = _moved(u, scores, a, b)
    product = (pulled**2).mean() * moved.var()
    return 0.5 * np.log(product) if 0.0 < product < np.inf else np.inf


def _moved(u, scores, a, b):
    moved, slope, bend = stretch(u, a, b)
    return moved, (scores - bend / slope) / slope


def stretch(u: np.ndarray, a: float, b: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return T(u), T'(u) and T''(u), see the module's docstring."""
    w, root = np.arcsinh(u), np.sqrt(1.0 + u**2)
    above, below = np.exp(a * w), np.exp(-b * w)
    first, second = (a * above + b * below) / (a + b), (a**2 * above - b**2 * below) / (a + b)
    return (above - below) / (a + b), first / root, (second - first * u / root) / root**2
