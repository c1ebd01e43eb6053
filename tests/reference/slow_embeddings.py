"""Kernel Bayes' rules, density ratio, filter and adjustment as they are printed: dense matrices and plain loops."""

import numpy as np


def original(gram_latent, prior_mean, gram_observed, query, epsilon, delta):
    """Figure 1 of Fukumizu et al. (2013), with prior weights that sum to n as printed."""
    n = len(gram_latent)
    mu = n * np.linalg.solve(gram_latent + n * epsilon * np.eye(n), prior_mean)
    product = np.diag(mu) @ gram_observed
    return product @ np.linalg.solve(product @ product + delta * np.eye(n), np.diag(mu) @ query)


def importance(gram_latent, prior_mean, gram_observed, query, eta, strength):
    """Algorithm 1 of Xu et al. (2022): KuLSIF weights, then regression."""
    n = len(gram_latent)
    ratio = np.maximum(0.0, n * np.linalg.solve(gram_latent + n * eta * np.eye(n), prior_mean))
    root = np.diag(np.sqrt(ratio))
    system = root @ gram_observed @ root + n * strength * np.eye(n)
    return ratio, root @ np.linalg.solve(system, root @ query)


def ratio_loss(features, prior_features, weights, eta):
    """Leave-one-out loss of KuLSIF on features: every point and every prior draw left out in turn, fitted anew."""
    n, r = features.shape
    first = second = 0.0
    for i in range(n):
        rest = np.delete(features, i, axis=0)
        beta = np.linalg.solve(rest.T @ rest / (n - 1) + eta * np.eye(r), weights @ prior_features)
        first += 0.5 * max(0.0, features[i] @ beta) ** 2 / n
    moments = features.T @ features / n + eta * np.eye(r)
    for j in range(len(prior_features)):
        rest = np.delete(weights, j)
        beta = np.linalg.solve(moments, rest / rest.sum() @ np.delete(prior_features, j, axis=0))
        second += weights[j] * max(0.0, prior_features[j] @ beta)
    return first - second


def relative_ratio_loss(features, prior_features, relative, eta):
    """Leave-one-out loss of the relative ratio: every point of both samples left out in turn, fitted anew."""

    def fit(below, above):
        moments = (1 - relative) * below.T @ below / len(below) + relative * above.T @ above / len(above)
        return np.linalg.solve(moments + eta * np.eye(features.shape[1]), above.mean(axis=0))

    n, m = len(features), len(prior_features)
    first = second = 0.0
    for i in range(n):
        value = max(0.0, features[i] @ fit(np.delete(features, i, axis=0), prior_features))
        first += 0.5 * (1 - relative) * value**2 / n
    for j in range(m):
        value = max(0.0, prior_features[j] @ fit(features, np.delete(prior_features, j, axis=0)))
        first += 0.5 * relative * value**2 / m
        second += value / m
    return first - second


def ridge_errors(features, weights, targets, strength):
    """Leave-one-out errors of weighted ridge regression, each point left out and all fitted anew."""
    n, r = features.shape
    out = np.empty_like(targets)
    for i in range(n):
        keep = np.arange(n) != i
        inside = features[keep]
        system = inside.T @ (weights[keep, None] * inside) + n * strength * np.eye(r)
        out[i] = targets[i] - features[i] @ np.linalg.solve(system, inside.T @ (weights[keep, None] * targets[keep]))
    return out


def filter_weights(states, gram_states, gram_observed, queries, eta, strength):
    """Algorithm 2 of Xu et al. (2022), the weights divided by their sum at each step."""
    size = len(states)
    weights, out = np.full(size, 1.0 / size), []
    for query in queries:
        updated = importance(gram_states, gram_states @ weights, gram_observed, query, eta, strength)[1]
        out.append(updated / updated.sum())
        before = gram_states[:-1, :-1]
        ahead = np.linalg.solve(before + (size - 1) * eta * np.eye(size - 1), gram_states[:-1] @ out[-1])
        weights = np.concatenate([[0.0], ahead])
    return np.array(out)
