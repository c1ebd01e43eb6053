"""States from observations by a recurrent network (LSTM), the rival of kernel filters in Xu et al. (2022).

A state is predicted from the features of its observation and of the ten before it. The extractor of the features has
the layers of ``pk.LearnedFeatures``, since the source gives its network and kernel features the same. Adam; the number
of steps is that of the smallest error on the last fifth of the sequence, and training is repeated on all of it.
"""

from dataclasses import dataclass

import numpy as np

WINDOW = 11  # observations: that of the state and ten before it
LAYERS = (128, 64)
BATCH, CLIP = 64, 1.0  # windows, largest norm of a gradient
LEARNING_RATE, DECAYS = 2e-3, (0.9, 0.999)  # of Adam
PATIENCE, EVERY = 8, 25  # looks at the held-out error without a better one; training steps from one to the next
LENGTH = 3.0  # of a typical observation, in the units that the network sees


def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def start_weights(num_inputs, num_outputs, layers, num_hidden, rng):
    """Return random weights by name; the forget gate starts open."""
    first, second = layers
    shapes = {
        "first": (num_inputs, first), "second": (first, second), "gates": (second + num_hidden, 4 * num_hidden),
        "read": (num_hidden, num_outputs),
    }  # fmt: skip
    weights = {name: rng.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
    weights |= {"first shift": np.zeros(first), "second shift": np.zeros(second), "offset": np.zeros(num_outputs)}
    weights["gates shift"] = np.repeat([0.0, 1.0, 0.0, 0.0], num_hidden)
    return weights


def forward(weights, x):
    """Return outputs (batch, p) after the last step of windows ``x`` (steps, batch, q), and all that led to them."""
    one = np.maximum(x @ weights["first"] + weights["first shift"], 0.0)
    two = np.maximum(one @ weights["second"] + weights["second shift"], 0.0)
    size, tape = weights["read"].shape[0], []
    hidden = cell = np.zeros((x.shape[1], size), dtype=x.dtype)
    for features in two:
        joined = np.concatenate([features, hidden], axis=1)
        sums = joined @ weights["gates"] + weights["gates shift"]
        enter, forget, leave = (sigmoid(sums[:, k * size : (k + 1) * size]) for k in range(3))
        new = np.tanh(sums[:, 3 * size :])
        before, cell = cell, forget * cell + enter * new
        squashed = np.tanh(cell)
        hidden = leave * squashed
        tape.append((joined, enter, forget, leave, new, before, squashed))
    return hidden @ weights["read"] + weights["offset"], (one, two, tape, hidden)


def loss_and_gradient(weights, x, y):
    """Return half the mean squared distance of the outputs to ``y`` (batch, p), and its gradient by name."""
    outputs, (one, two, tape, hidden) = forward(weights, x)
    error = outputs - y
    slope = error / len(error)
    gradient = {"read": hidden.T @ slope, "offset": slope.sum(axis=0)}
    gates, shift = np.zeros_like(weights["gates"]), np.zeros_like(weights["gates shift"])
    to_hidden, back_cell, to_features = slope @ weights["read"].T, 0.0, np.empty_like(two)
    for t in range(len(tape) - 1, -1, -1):
        joined, enter, forget, leave, new, before, squashed = tape[t]
        to_cell = back_cell + to_hidden * leave * (1.0 - squashed**2)
        sums = np.concatenate(
            [
                to_cell * new * enter * (1.0 - enter),
                to_cell * before * forget * (1.0 - forget),
                to_hidden * squashed * leave * (1.0 - leave),
                to_cell * enter * (1.0 - new**2),
            ],
            axis=1,
        )
        gates += joined.T @ sums
        shift += sums.sum(axis=0)
        back = sums @ weights["gates"].T
        to_features[t], to_hidden = back[:, : two.shape[2]], back[:, two.shape[2] :]
        back_cell = to_cell * forget
    to_features *= two > 0.0
    to_one = (to_features @ weights["second"].T) * (one > 0.0)
    rows = [array.reshape(-1, array.shape[2]) for array in (x, one, to_one, to_features)]
    gradient |= {"gates": gates, "gates shift": shift, "first": rows[0].T @ rows[2], "second": rows[1].T @ rows[3]}
    gradient |= {"first shift": rows[2].sum(axis=0), "second shift": rows[3].sum(axis=0)}
    return 0.5 * (error**2).sum() / len(error), gradient


def windows(observations):
    """Return the places (steps, n) of the observations that each state is predicted from; the first is repeated."""
    return np.maximum(np.arange(len(observations)) + np.arange(1 - WINDOW, 1)[:, None], 0)


@dataclass(frozen=True)
class LSTM:
    """Size of the recurrent layer, and the largest number of training steps."""

    num_hidden: int = 64
    max_steps: int = 1500

    def fit(self, states, observations, rng):
        """Return the network learned from states (T, p) and observations (T, q) in the order of time."""
        cut, errors = len(states) * 4 // 5, []
        for fitted in self._training(states[:cut], observations[:cut], self.max_steps, rng):
            errors.append(((fitted.filter(observations)[cut:] - states[cut:]) ** 2).mean())
            best = int(np.argmin(errors)) + 1
            if len(errors) - best >= PATIENCE:
                break
        *_, fitted = self._training(states, observations, best * EVERY, rng)
        return fitted

    def _training(self, states, observations, num_steps, rng):
        """Yield the network after each ``EVERY`` steps of Adam."""
        center, scale = observations.mean(axis=0), np.sqrt(observations.var(axis=0).sum()) / LENGTH
        x, y = ((observations - center) / scale).astype(np.float32), (states - states.mean(axis=0)).astype(np.float32)
        weights = start_weights(x.shape[1], y.shape[1], LAYERS, self.num_hidden, rng)
        weights = {name: value.astype(np.float32) for name, value in weights.items()}
        first, second = ({name: np.zeros_like(v) for name, v in weights.items()} for _ in range(2))
        places = windows(x)
        for step in range(1, num_steps + 1):
            chosen = rng.integers(0, len(x), BATCH)
            _, gradient = loss_and_gradient(weights, x[places[:, chosen]], y[chosen])
            norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
            for name, g in gradient.items():
                g *= min(1.0, CLIP / norm)
                first[name] = DECAYS[0] * first[name] + (1.0 - DECAYS[0]) * g
                second[name] = DECAYS[1] * second[name] + (1.0 - DECAYS[1]) * g**2
                mean, square = first[name] / (1.0 - DECAYS[0] ** step), second[name] / (1.0 - DECAYS[1] ** step)
                weights = weights | {name: weights[name] - LEARNING_RATE * mean / (np.sqrt(square) + 1e-8)}
            if step % EVERY == 0:
                yield FittedLSTM(weights, center, scale, states.mean(axis=0))


@dataclass(frozen=True)
class FittedLSTM:
    """Weights, and the scales of observations and states."""

    weights: dict
    center: np.ndarray
    scale: float
    middle: np.ndarray

    def filter(self, observations):
        """Return states (S, p) from observations (S, q), each from the window that ends at its time."""
        x = ((observations - self.center) / self.scale).astype(np.float32)
        return forward(self.weights, x[windows(x)])[0] + self.middle
