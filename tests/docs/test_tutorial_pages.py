"""Percent scripts become pages: text, code, what it prints and draws."""

import os
import re
import subprocess
import sys
import warnings

import pytest

from docs import tutorial_pages
from docs.tutorial_pages import ORDER, ROOT, SCRIPTS, cells_of, inline_to_rst, markdown_to_rst, page_of

SCRIPT = """# %% [markdown]
# # A title
#
# Some *text* with `code`.

# %%
import sys

x = 2

# %% [markdown]
# - first
# - second

# %%
print(x + 1, sys.argv[1:])
"""


def test_cells():
    kinds, texts = zip(*cells_of(SCRIPT), strict=True)
    assert kinds == ("markdown", "code", "markdown", "code")
    assert texts[0] == "# A title\n\nSome *text* with `code`."
    assert texts[1] == "import sys\n\nx = 2"
    assert texts[2] == "- first\n- second"


@pytest.mark.parametrize(
    ("markdown", "rst"),
    [
        ("`pk.KernelHMC()`", ":py:obj:`pk.KernelHMC() <pymc_kernel.KernelHMC>`"),
        ("`pm.sample`", "``pm.sample``"),
        ("[a page](../docs/methods/smc.rst)", ":doc:`a page </methods/smc>`"),
        ("[PyMC](https://www.pymc.io)", "`PyMC <https://www.pymc.io>`__"),
        ("|x| and theta_", r"\|x\| and theta\_"),
        ("*some* **words**", "*some* **words**"),
    ],
)
def test_inline(markdown, rst):
    assert inline_to_rst(markdown) == rst


def test_a_page_has_output_pictures_and_warnings(tmp_path, monkeypatch):
    script = tmp_path / "short.py"
    script.write_text(
        SCRIPT + "\n# %%\nimport warnings\nfrom pathlib import Path\nPath('dot.png').write_bytes(b'')\n"
        "warnings.warn('mind this')\nwarnings.warn('Numba will use object mode')\n"
        "import logging\nlogging.getLogger('pymc.step').warning('a chain is stuck')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pytest"])
    filters = list(warnings.filters)
    page = page_of(script, tmp_path / "out")
    assert page.startswith("A title\n=======\n\nSome *text* with ``code``.")
    assert "   3 ['--quick']" in page
    assert ".. image:: out/dot.png" in page
    assert "   UserWarning: mind this" in page
    assert "   a chain is stuck" in page
    assert "object mode\n\n.." not in page
    assert page.count("object mode") == 1  # in the code, not in what it printed
    assert warnings.filters == filters


def test_a_page_is_fresh_until_its_script_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(tutorial_pages, "SCRIPTS", tmp_path)
    monkeypatch.setattr(tutorial_pages, "PAGES", tmp_path / "pages")
    monkeypatch.setattr("sys.argv", ["pytest"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.py").write_text(SCRIPT)
    assert not tutorial_pages.is_fresh("short")
    tutorial_pages.make_page("short")
    assert tutorial_pages.is_fresh("short")
    (tmp_path / "short.py").write_text(SCRIPT + "\nx = 3\n")
    assert not tutorial_pages.is_fresh("short")


@pytest.mark.parametrize("name", ORDER)
def test_tutorials_read_from_top_to_bottom(name):
    cells = cells_of((SCRIPTS / f"{name}.py").read_text())
    assert cells[0][0] == "markdown"
    assert cells[0][1].startswith("# ")
    assert sum(kind == "markdown" for kind, _ in cells) >= 5
    for _, code in cells:
        compile(code, name, "exec") if _ == "code" else markdown_to_rst(code)


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDER)
def test_tutorials_run(name, tmp_path):
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), "--quick"]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pictures = set(re.findall(r'savefig\("(\w+\.png)"', (SCRIPTS / f"{name}.py").read_text()))
    assert pictures
    assert {path.name for path in tmp_path.glob("*.png")} == pictures
