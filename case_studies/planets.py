# %% [markdown]
# # Two planets of one star: an orbit fit with a dozen modes
#
# The speed of the star HD 164922 was measured 401 times in twenty years, by three instruments. A planet of 1,200 days
# is plain to see. A second one is small, and its period is not: each of a dozen periods between 10 and 200 days fits
# better than all periods near it. Fulton et al. (2016) found 75.765 days, and this is the example that the package for
# such fits, RadVel, ships with (MIT license; its data are kept here).
#
# The orbits come out of a solver of Kepler's equation, compiled by Numba: a black box of ten inputs and 401 outputs. A
# chain stays in the mode where it begins. Particles come from the prior, weigh the modes, and give the evidence, which
# says whether there is a second planet at all.

# %%
from pathlib import Path

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import wrap_py

HERE = Path(__file__).parent
DATA = np.genfromtxt(HERE / "data" / "hd_164922.csv", delimiter=",", names=True, dtype=None, encoding="utf8")
INSTRUMENTS = ["k", "j", "a"]  # Keck before and after its detector was changed, and the Automated Planet Finder
ROW = np.array([INSTRUMENTS.index(name) for name in DATA["instrument"]])
DAYS = DATA["day"] - 4500.0  # zero is in the middle
STAR_MASS = 0.874  # of the sun
EARTH_MASS_SPEED = 0.08945  # meters a second, of an earth on a circle of a year around a sun
# Period (days), eccentricity and mass (earths, for an orbit seen from its edge) of the second planet; Fulton et al. 2016.
PUBLISHED = {"period": (75.765, 0.057), "eccentricity": (0.22, 0.13), "mass": (12.9, 1.6)}
LONGEST, SHORTEST = 200.0, 10.0  # days, of the second period


# %% [markdown]
# ## The black box
#
# An orbit has a frequency, two amplitudes, whose sizes are those of a sine and a cosine if it is a circle, and two
# numbers for its eccentricity: its square root times the cosine and the sine of where the planet is nearest. None of
# them is an angle, which would begin anew after a turn.


# %%
@numba.njit(cache=True)
def add_orbit(days, orbit, speeds):
    """Add the speeds (n,) of a star at some days, by one planet."""
    frequency, sine, cosine, near_cosine, near_sine = orbit
    eccentricity = near_cosine**2 + near_sine**2
    nearest, size = np.arctan2(near_sine, near_cosine), np.hypot(sine, cosine)
    begin = np.arctan2(-sine, cosine)
    root = np.sqrt((1.0 + eccentricity) / (1.0 - eccentricity))
    for i in range(len(days)):
        mean = (2.0 * np.pi * frequency * days[i] + begin - nearest) % (2.0 * np.pi)
        angle = mean + eccentricity * np.sin(mean)
        for _ in range(20):  # Newton's method for Kepler's equation
            step = (angle - eccentricity * np.sin(angle) - mean) / (1.0 - eccentricity * np.cos(angle))
            angle -= step
            if abs(step) < 1e-10:
                break
        true = 2.0 * np.arctan(root * np.tan(0.5 * angle))
        speeds[i] += size * (np.cos(true + nearest) + eccentricity * np.cos(nearest))


@numba.njit(cache=True)
def speeds_by(days, orbits):
    """Return the speeds (n,) by planets with orbits (planets, 5); not a number where a path is no ellipse."""
    speeds = np.zeros(len(days))
    for orbit in orbits:
        if orbit[3] ** 2 + orbit[4] ** 2 >= 0.95:
            return np.full(len(days), np.nan)
        add_orbit(days, orbit, speeds)
    return speeds


@wrap_py([pt.dmatrix], [pt.dvector])
def star_speeds(orbits):
    """Return the speeds (401,) of the star, by orbits (planets, 5)."""
    return speeds_by(DAYS, np.ascontiguousarray(orbits))


# %% [markdown]
# ## The model
#
# Instruments have a zero of their own, and more noise than they say.


# %%
def planet_model(num_planets=2):
    """Return the model with one planet, of some 1,200 days, or a second one of ten to 200."""
    with pm.Model(coords={"instrument": INSTRUMENTS, "planet": ["b", "c"][:num_planets]}) as model:
        first = 1.0 / pm.Normal("first_period", 1200.0, 50.0)
        frequencies = [first]
        if num_planets == 2:
            frequencies.append(pm.Uniform("frequency", 1.0 / LONGEST, 1.0 / SHORTEST))
        amplitude = pm.Normal(
            "amplitude", 0.0, np.array([7.0, 3.0])[:num_planets, None], dims=("planet", "wave"), shape=(num_planets, 2)
        )
        shape = pm.Normal("shape", 0.0, 0.3, dims=("planet", "axis"), shape=(num_planets, 2))
        zero = pm.Normal("zero", 0.0, 5.0, dims="instrument")
        jitter = pm.HalfNormal("jitter", 5.0, dims="instrument")
        orbits = pt.concatenate([pt.stack(frequencies)[:, None], amplitude, shape], axis=1)
        noise = pt.sqrt(jitter[ROW] ** 2 + DATA["error"] ** 2)
        pm.Normal("velocity", star_speeds(orbits) + zero[ROW], noise, observed=DATA["velocity"])
    return model
