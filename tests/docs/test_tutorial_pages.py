"""Percent scripts become pages: text, code, what it prints and draws."""

import os
import re
import subprocess
import sys
import warnings

import pytest

from docs import tutorial_pages
from docs.tutorial_pages import ORDER, ROOT, SCRIPTS, page_of, run

SCRIPT = """# %% [markdown]
# # A title
#
# Some *text* with `code`.

# %%
x = 2

# %% [markdown]
# - first |x| and theta_
# - `pk.KernelHMC()`, [a page](../docs/methods/smc.rst), [PyMC](https://www.pymc.io)

# %%
print(x + 1)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script that is still to be written, with its output in a folder of its own."""
    monkeypatch.setattr(tutorial_pages, "OUTPUT", tmp_path / "output")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "short.py"


WARNING = """
# %%
import logging
import warnings
from pathlib import Path

Path("dot.png").write_bytes(b"")
warnings.warn("mind this")
warnings.warn("Numba will use object mode")
logging.getLogger("pymc.step").warning("a chain is stuck")
"""
EXPLAINED = "\n# %% [markdown]\n# The warnings say so.\n"


def test_a_page_has_output_pictures_and_warnings_of_which_the_text_speaks(script):
    script.write_text(SCRIPT + WARNING)
    filters = list(warnings.filters)
    run(script)
    with pytest.raises(ValueError, match="does not speak of this warning: UserWarning: mind this"):
        page_of(script)
    script.write_text(SCRIPT + WARNING + EXPLAINED)
    page = page_of(script)
    assert page.startswith("A title\n=======\n\nSome *text* with ``code``.\n\n*Run by* ``python tutorials/short.py``")
    assert r"- first \|x\| and theta\_" in page
    assert ":py:obj:`pk.KernelHMC() <pymc_kernel.KernelHMC>`, :doc:`a page </methods/smc>`, `PyMC <https://www" in page
    assert "   3\n" in page
    assert ".. image:: output/short/dot.png" in page
    assert "   UserWarning: mind this" in page
    assert "   a chain is stuck" in page
    assert "object mode\n\n.." not in page
    assert page.count("object mode") == 1  # in the code, not in what it printed
    assert warnings.filters == filters


def test_output_belongs_to_the_code(script):
    script.write_text(SCRIPT)
    with pytest.raises(ValueError, match="--run short"):
        page_of(script)
    run(script)
    script.write_text(SCRIPT.replace("Some", "Any"))
    assert "Any *text*" in page_of(script)
    script.write_text(SCRIPT.replace("x + 1", "x + 2"))
    with pytest.raises(ValueError, match="--run short"):
        page_of(script)


@pytest.mark.parametrize("name", ORDER)
def test_tutorials_have_the_output_of_their_code(name):
    page_of(SCRIPTS / f"{name}.py")


# So that each takes less than a minute. The text of the pages is about the full runs, whose output is kept.
SMALLER = {
    "approximate_draws": {"DRAWS = 2000": "DRAWS = 500", "pm.fit(40_000": "pm.fit(4000"},
    "at_scale": {
        "CELLS = 1000": "CELLS = 40",
        "        3000,": "        400,",
        "        5000,": "        600,",
        "s=5000": "s=400",
    },
    "epidemic": {"4000, tune=2000": "500, tune=500", "=10_000": "=2000"},
    "hares_and_lynx": {"draws=4000": "draws=500", "tune=4000": "tune=1000"},
    "noisy_likelihood": {"DRAWS = 4000": "DRAWS = 500"},
    "reaction_times": {"SIMULATED = 5000": "SIMULATED = 500", '"target_accept": 0.95,': '"draws": 100, "tune": 200,'},
    "several_modes": {"8000, pk.KASMC": "1000, pk.KASMC"},
    "theophylline": {'"chains": 4,': '"draws": 300, "tune": 500, "chains": 2,', "        200,": "        25,"},
}
_FROM_STDIN = """
import sys
exec(compile(sys.stdin.read(), sys.argv[1], "exec"), {"__name__": "__main__", "__file__": sys.argv[1]})
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDER)
def test_tutorials_run(name, tmp_path):
    script = SCRIPTS / f"{name}.py"
    text = script.read_text()
    for full, small in SMALLER[name].items():
        assert text.count(full) == 1
        text = text.replace(full, small)
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": paths}
    command = [sys.executable, "-c", _FROM_STDIN, str(script)]
    done = subprocess.run(
        command, input=text, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    pictures = set(re.findall(r'savefig\("(\w+\.png)"', text))
    assert pictures
    assert {path.name for path in tmp_path.glob("*.png")} == pictures
