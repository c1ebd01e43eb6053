"""States from observations by a recurrent network (LSTM), the rival of kernel filters in Xu et al. (2022).

A linear layer, one LSTM layer and a linear layer, trained by Adam on windows of the training sequence; the weights are
those of the smallest error on its last fifth. The source does not print its network.
"""

from dataclasses import dataclass

import numpy as np

WINDOW, BATCH, CLIP = 20, 32, 1.0  # steps, windows, largest norm of a gradient
LEARNING_RATE, DECAYS = 3e-3, (0.9, 0.999)  # of Adam
PATIENCE, EVERY = 10, 25  # looks at the validation error without a better one; training steps from one to the next
LENGTH = 3.0  # of a typical observation, in the units that the network sees
NOISE = 0.05  # that training adds to observations, as a share of their length


def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def start_weights(num_inputs, num_outputs, num_embedded, num_hidden, rng):
    """Return random weights by name; the forget gate starts open."""
    shapes = {
        "embed": (num_inputs, num_embedded), "gates": (num_embedded + num_hidden, 4 * num_hidden),
        "read": (num_hidden, num_outputs),
    }  # fmt: skip
    weights = {name: rng.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
    shift = np.zeros(4 * num_hidden)
    shift[num_hidden : 2 * num_hidden] = 1.0
    return weights | {"shift": shift, "offset": np.zeros(num_outputs)}


def forward(weights, x, hidden, cell):
    """Return outputs (steps, batch, outputs), the tape for ``backward``, and the last hidden state and cell."""
    size, tape, outputs = hidden.shape[1], [], []
    for row in x:
        embedded = np.tanh(row @ weights["embed"])
        joined = np.concatenate([embedded, hidden], axis=1)
        sums = joined @ weights["gates"] + weights["shift"]
        enter, forget, leave = (sigmoid(sums[:, k * size : (k + 1) * size]) for k in range(3))
        new = np.tanh(sums[:, 3 * size :])
        before, cell = cell, forget * cell + enter * new
        squashed = np.tanh(cell)
        hidden = leave * squashed
        tape.append((row, embedded, joined, enter, forget, leave, new, before, squashed, hidden))
        outputs.append(hidden @ weights["read"] + weights["offset"])
    return np.array(outputs), tape, hidden, cell


def backward(weights, tape, slopes):
    """Return the gradient by name from the slopes of the loss in the outputs."""
    gradient = {name: np.zeros_like(value) for name, value in weights.items()}
    num_embedded = weights["embed"].shape[1]
    back_hidden = back_cell = 0.0
    for (row, embedded, joined, enter, forget, leave, new, before, squashed, hidden), slope in zip(
        reversed(tape), slopes[::-1], strict=True
    ):
        gradient["read"] += hidden.T @ slope
        gradient["offset"] += slope.sum(axis=0)
        to_hidden = slope @ weights["read"].T + back_hidden
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
        gradient["gates"] += joined.T @ sums
        gradient["shift"] += sums.sum(axis=0)
        back = sums @ weights["gates"].T
        back_hidden, back_cell = back[:, num_embedded:], to_cell * forget
        gradient["embed"] += row.T @ (back[:, :num_embedded] * (1.0 - embedded**2))
    return gradient


def loss_and_gradient(weights, x, y):
    """Return half the mean squared error over (steps, batch) of windows, and its gradient."""
    nothing = np.zeros((x.shape[1], weights["read"].shape[0]))
    outputs, tape, _, _ = forward(weights, x, nothing, nothing)
    error = outputs - y
    count = error.shape[0] * error.shape[1]
    return 0.5 * (error**2).sum() / count, backward(weights, tape, error / count)


@dataclass(frozen=True)
class LSTM:
    """Sizes of the layers, and the largest number of training steps."""

    num_embedded: int = 32
    num_hidden: int = 64
    max_steps: int = 3000

    def fit(self, states, observations, rng):
        """Return the network learned from states (T, p) and observations (T, q) in the order of time."""
        center, scale = observations.mean(axis=0), np.sqrt(observations.var(axis=0).sum()) / LENGTH
        x, middle = (observations - center) / scale, states.mean(axis=0)
        y, cut = states - middle, len(states) * 4 // 5
        weights = start_weights(x.shape[1], y.shape[1], self.num_embedded, self.num_hidden, rng)
        first, second = ({name: np.zeros_like(v) for name, v in weights.items()} for _ in range(2))
        best, best_error, waited = None, np.inf, 0
        noise = NOISE * LENGTH / np.sqrt(x.shape[1])
        for step in range(1, self.max_steps + 1):
            rows = rng.integers(0, cut - WINDOW, BATCH) + np.arange(WINDOW)[:, None]
            _, gradient = loss_and_gradient(weights, x[rows] + noise * rng.standard_normal(x[rows].shape), y[rows])
            norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
            for name, g in gradient.items():
                g *= min(1.0, CLIP / norm)
                first[name] = DECAYS[0] * first[name] + (1.0 - DECAYS[0]) * g
                second[name] = DECAYS[1] * second[name] + (1.0 - DECAYS[1]) * g**2
                mean, square = first[name] / (1.0 - DECAYS[0] ** step), second[name] / (1.0 - DECAYS[1] ** step)
                weights = weights | {name: weights[name] - LEARNING_RATE * mean / (np.sqrt(square) + 1e-8)}
            if step % EVERY == 0:
                fitted = FittedLSTM(weights, center, scale, middle)
                error = ((fitted.filter(observations)[cut:] - states[cut:]) ** 2).mean()
                if error < best_error:
                    best, best_error, waited = fitted, error, 0
                elif (waited := waited + 1) >= PATIENCE:
                    break
        return best


@dataclass(frozen=True)
class FittedLSTM:
    """Weights, and the scales of observations and states."""

    weights: dict
    center: np.ndarray
    scale: float
    middle: np.ndarray

    def filter(self, observations):
        """Return states (S, p) from observations (S, q), each from those up to its time."""
        x = (observations - self.center) / self.scale
        nothing = np.zeros((1, self.weights["read"].shape[0]))
        return forward(self.weights, x[:, None], nothing, nothing)[0][:, 0] + self.middle
