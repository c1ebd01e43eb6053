# %% [markdown]
# # A program inside a hierarchy: a drug in twelve patients
#
# Twelve patients swallowed theophylline, and its level in their blood was measured ten times in a
# day. Patients differ in how fast they absorb and eliminate the drug, so the model is a hierarchy,
# with 43 parameters. The curves come from an external program that PyMC cannot look into. The
# program reads rates and prints levels.
#
# 43 parameters are too many for a random walk. But the only part that PyMC does not know is a curve
# with two inputs. `pk.emulate` learns that curve from a few dozen runs, and PyMC's NUTS does the
# rest.
#
# What you learn: how to put a program into a model, what `pk.emulate` prints, and how to check its
# answer.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import wrap_py

import pymc_kernel as pk

# %% [markdown]
# ## The data
#
# Doses are in milligrams per kilogram, levels in milligrams per liter (Boeckmann, Sheiner and Beal
# 1994; R has them as `Theoph`). The level before the dose is left out.

# %%
root = Path(__file__).resolve().parent.parent
table = np.genfromtxt(
    root / "benchmarks/posteriors/theophylline.csv", delimiter=",", names=True
)
table = table[table["hours"] > 0.0]
patients = np.unique(table["patient"]).astype(int)
hours = np.array([table["hours"][table["patient"] == p] for p in patients])
level = np.array([table["level"][table["patient"] == p] for p in patients])
dose = np.array([table["dose"][table["patient"] == p][0] for p in patients])

figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.plot(hours.T, level.T, "o-", markersize=3, linewidth=1)
axis.set(xlabel="hours after the dose", ylabel="level, mg / L")
figure.savefig("levels.png", dpi=100)

# %% [markdown]
# ## The program
#
# It solves two differential equations in small steps: the drug passes from the gut into the blood,
# and then leaves the blood. Here it is a script, so that this tutorial runs everywhere. Yours may
# be a compiled program that takes minutes.

# %%
PROGRAM = """
import sys

for line in sys.stdin:
    absorption, loss, *hours = map(float, line.split())
    gut, blood, now, levels = 1.0, 0.0, 0.0, []
    for hour in hours:
        steps = 1 + int(100 * (hour - now))
        h = (hour - now) / steps
        for _ in range(steps):  # midpoint rule
            gut_half = gut - 0.5 * h * absorption * gut
            blood_half = blood + 0.5 * h * (absorption * gut - loss * blood)
            gut -= h * absorption * gut_half
            blood += h * (absorption * gut_half - loss * blood_half)
        now = hour
        levels.append(blood)
    print(*levels)
"""
program = Path(tempfile.mkdtemp()) / "blood.py"
program.write_text(PROGRAM)


@wrap_py([pt.dmatrix], [pt.dmatrix])
def share_in_blood(rates):
    """Run the program for all patients: from rates (12, 2) to shares (12, 10) of the dose."""
    rows = np.hstack([rates, hours])
    ran = subprocess.run(
        [sys.executable, str(program)],
        input="\n".join(" ".join(map(repr, row)) for row in rows.tolist()),
        capture_output=True,
        text=True,
        check=True,
    )
    return np.array([line.split() for line in ran.stdout.splitlines()], dtype=float)


# %% [markdown]
# ## The model
#
# Rates are in 1 / hour, volumes in liters per kilogram. Their logarithms are normally distributed
# around typical values.


# %%
def hierarchy():
    """Add what is known to the model; return rates and volumes (12, 3), and the noise."""
    typical = pm.Normal("typical", [0.5, -2.5, -0.7], 0.5, dims="of")
    spread = pm.HalfNormal("spread", 0.5, dims="of")
    offset = pm.Normal("offset", dims=("patient", "of"))
    noise = pm.HalfNormal("noise", 1.0)
    return pt.exp(typical + spread * offset), noise


with pm.Model(
    coords={"patient": patients, "of": ["absorption", "loss", "volume"]}
) as model:
    own, noise = hierarchy()
    curve = pm.Deterministic(
        "curve", (dose / own[:, 2])[:, None] * share_in_blood(own[:, :2])
    )
    pm.Normal("level", curve, noise, observed=level)

print(pk.black_boxes(model).to_string())

# %% [markdown]
# One call takes twelve rows of two inputs each, and returns ten levels for each row. A few runs of
# the program have shown that the rows do not depend on each other. Each row is a different
# function, since each patient was measured at different hours.
#
# ## Learning the part
#
# An evaluation is one run of the program, for all twelve patients.

# %%
emulated = pk.emulate(model, evaluations=100, random_seed=1, progressbar=False)
print(emulated.emulation.num_evaluations, "runs of the program")
print(emulated.emulation.rounds.round(3).to_string())

# %% [markdown]
# `distance` is the total variation distance between the emulated and the true posterior, estimated
# at draws not yet used for fitting. `held_out` is the same at all evaluated points, each predicted
# from the others. The search ends when the distances of two rounds and `held_out` are below .05 and
# chains from different starts agree.
#
# ## Sampling
#
# The emulated model has gradients and does not run the program. It is sampled like any other model.

# %%
settings = {"chains": 4, "target_accept": 0.9, "progressbar": False}
with emulated:
    idata = pm.sample(random_seed=1, **settings)
print(az.summary(idata, var_names=["typical", "spread", "noise"]))

# %% [markdown]
# Each line is the curve of one draw, and the dots are the measured levels.

# %%
figure, axes = plt.subplots(
    2, 6, figsize=(11, 4), sharex=True, sharey=True, layout="constrained"
)
curves = idata["posterior"]["curve"].values.reshape(-1, *level.shape)
for i, axis in enumerate(axes.ravel()):
    axis.plot(
        hours[i], curves[:: len(curves) // 50, i].T, color="C0", alpha=0.15, linewidth=1
    )
    axis.plot(hours[i], level[i], "o", color="black", markersize=3)
    axis.set_title(f"patient {patients[i]}", fontsize=9)
figure.supxlabel("hours after the dose")
figure.supylabel("level, mg / L")
figure.savefig("theophylline.png", dpi=110)

# %% [markdown]
# ## Is it right?
#
# Unlike most programs, this one can be replaced by a known formula. NUTS on the model with the
# formula gives the exact posterior.

# %%
with pm.Model(coords=model.coords) as known:
    own, noise = hierarchy()
    absorption, loss, volume = own[:, [0]], own[:, [1]], own[:, [2]]
    share = (
        absorption
        / (absorption - loss)
        * (pt.exp(-loss * hours) - pt.exp(-absorption * hours))
    )
    pm.Normal("level", dose[:, None] / volume * share, noise, observed=level)
    exact = pm.sample(random_seed=2, **settings)
for name in ("typical", "spread", "noise"):
    here, there = (tree["posterior"][name] for tree in (idata, exact))
    sd, sd_there = here.std(("chain", "draw")), there.std(("chain", "draw"))
    off = (here.mean(("chain", "draw")) - there.mean(("chain", "draw"))) / sd_there
    print(f"{name}: means off by {off.values.round(2)} sd", end=", ")
    print(f"ratios of sd {(sd / sd_there).values.round(2)}")

# %% [markdown]
# Where no formula is known, use `pm.sample(step=pk.EmulatedNUTS(emulated))` on the model itself. It
# gives exact draws, with one run of the program per draw. Its acceptance rate says how good the
# emulation is in the region that the chain visits.

# %%
with model:
    corrected = pm.sample(
        200,
        tune=300,
        chains=2,
        cores=1,
        step=pk.EmulatedNUTS(emulated),
        random_seed=1,
        progressbar=False,
        compute_convergence_checks=False,
    )
print("acceptance rate:", round(float(corrected["sample_stats"]["accept"].mean()), 3))

# %% [markdown]
# ## From warning to fix
#
# - *The emulated model should not be trusted*: its distance is still above the tolerance after all
#   evaluations. Take more (`evaluations=200`), or a prior nearer to the data. `EmulatedNUTS` is
#   still exact, with a lower acceptance rate.
# - *NUTS chains on it do not agree*: take more evaluations.
# - *The emulated model is learned where its NUTS chains are*: the chains do not agree, and more
#   evaluations do not help. If the posterior has separate modes, `pk.sample_smc` on the emulated
#   model weighs them. If its shape is hard for NUTS, another parametrization may help.
# - *Evaluations failed*: the first error is in the warning. A program may fail where rates are
#   absurd. A prior that excludes such rates saves these evaluations.
#
# ## When not
#
# Do not use `pk.emulate` for a black box with more than about fifteen inputs, or for one that is
# random: see [emulate](../docs/methods/emulate.rst).
