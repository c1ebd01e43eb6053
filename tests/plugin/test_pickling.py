"""Models that workers get as bytes."""

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import wrap_py

from pymc_kernel.plugin.model.particle_density import compile_particle_density
from pymc_kernel.plugin.model.remote import pickled


def model_of_a_script():
    """Its operator is written inside of a function: no worker can import it by name."""
    slope = 2.0

    @wrap_py(itypes=[pt.dscalar], otypes=[pt.dscalar])
    def outside(x):
        return np.array(slope * x)

    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Normal("y", outside(x), 0.5, observed=1.0)
    return model


def test_operators_go_to_workers_with_their_functions():
    density = compile_particle_density(model_of_a_script(), "sample_surrogate", None, vectorize=False)
    with pytest.raises(Exception, match="wrap_py"):
        cloudpickle.dumps(density)
    there = cloudpickle.loads(pickled(density))
    for x in (-0.7, 0.3):
        place = np.array([x])
        assert there.at_one(place, None) == density.at_one(place, None)
        exact = -0.5 * ((1.0 - 2.0 * x) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2.0 * np.pi))
        np.testing.assert_allclose(there.at_one(place, None)[1], exact)
