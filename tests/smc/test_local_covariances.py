import numpy as np
import pytest

from pymc_kernel import kernels as K
from pymc_kernel.mcmc import kameleon, local_proposal
from pymc_kernel.smc import local_covariances as LC
from tests.mcmc.test_kameleon import KERNELS


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("away", [0.0, 1e4])
def test_many_places_are_one_place_each(kernel, away, rng):
    """Also where the points are far from the origin of raw coordinates, whose squares alone would lose all digits."""
    config = kameleon.Config(kernel=kernel, whiten=False)
    if isinstance(kernel, K.Linear | K.Polynomial) and away:
        pytest.skip("dot-product kernels have an origin")
    points = rng.normal(size=(300, 3)) * [1.0, 2.0, 0.5] + away
    learned = local_proposal.fit(points, points.mean(axis=0), np.eye(3), config, rng)
    places = rng.normal(size=(290, 3)) * [1.0, 2.0, 4.0] + away
    found = LC.local_at(places, LC.table(learned)).local
    expected = np.array([local_proposal.local_at(p, learned)[1] for p in places])
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
