"""How Sphinx builds the pages: ``make docs``."""

import inspect
import os
import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst.directives import flag
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import pymc as pm  # noqa: E402
from pymc.smc.kernels import SMC_KERNEL  # noqa: E402

import pymc_kernel  # noqa: E402
from docs.page_examples import PAGES_OF_METHODS  # noqa: E402
from docs.tutorial_pages import markdown_to_rst  # noqa: E402
from pymc_kernel.plugin.warn import UNSEEN_MODE  # noqa: E402

project = "pymc_kernel"
author = "The authors of pymc_kernel"
copyright = "the authors of pymc_kernel, Apache License 2.0"
version = release = pymc_kernel.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
default_role = "literal"
rst_epilog = f".. |unseen mode| replace:: {UNSEEN_MODE}"
# Other projects' lists of names are on the network, which a build must not need.
if os.environ.get("INTERSPHINX", "0") not in ("", "0"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "pymc": ("https://www.pymc.io/projects/docs/en/stable", None),
        "pytensor": ("https://pytensor.readthedocs.io/en/latest", None),
        "arviz": ("https://python.arviz.org/en/latest", None),
        "xarray": ("https://docs.xarray.dev/en/stable", None),
    }

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say what arguments are, with shapes
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_preprocess_types = True
napoleon_type_aliases = {
    "DataTree": "~xarray.DataTree",
    "ndarray": "~numpy.ndarray",
    "TensorVariable": "~pytensor.tensor.TensorVariable",
}

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "pymc_kernel"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {
    page: [] for page in ("index", "gallery", "install", "choosing", "neighbors", "measured", "extending", "sources")
}
html_theme_options = {
    "logo": {"text": "pymc_kernel"},
    "navigation_with_keys": False,
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}

_BARE_BAR = re.compile(r"(?<!`)\|(?!`)")


def _escape_bars(app, what, name, obj, options, lines):
    """Let |x - y| in a docstring be an absolute value, outside of ``code``: rst would take it for a substitution."""
    for i, line in enumerate(lines):
        parts = line.split("``")
        parts[::2] = [_BARE_BAR.sub(r"\\|", part) for part in parts[::2]]
        lines[i] = "``".join(parts)


def _skip_members(app, what, name, obj, skip, options):
    """Leave out fields of named tuples, which are in the docstring, and what PyMC alone calls of a step or kernel."""
    documentation = inspect.getdoc(obj) or ""
    is_pymcs = what == "class" and not name.startswith("_") and (hasattr(pm.NUTS, name) or hasattr(SMC_KERNEL, name))
    return True if is_pymcs or documentation.startswith("Alias for field number") else skip


def _link_to_its_method(app, what, name, obj, options, lines):
    """End the reference of a public name with a link to the page that shows it at work."""
    for page, names in PAGES_OF_METHODS.items():
        if name.removeprefix("pymc_kernel.") in names:
            lines += ["", f"When to use it, and a worked example: :doc:`/methods/{page}`.", ""]


class MeasuredTable(SphinxDirective):
    """A table of ``benchmarks/RESULTS.md``, as its script wrote it: ``.. measured:: gradient-free``.

    With ``:folded:`` a click opens it, where a picture says the same.
    """

    required_arguments = 1
    option_spec = {"folded": flag}  # noqa: RUF012 (Sphinx reads it from the class)

    def run(self):
        """Return the nodes of what is between the marks of that name."""
        results = ROOT / "benchmarks" / "RESULTS.md"
        self.env.note_dependency(str(results))
        name = self.arguments[0]
        text = results.read_text().split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]
        table = self.parse_text_to_nodes(markdown_to_rst(text))
        if "folded" not in self.options:
            return table
        opened, closed = (nodes.raw("", html, format="html") for html in _folded("Table"))
        return [opened, *table, closed]


class Pictures(SphinxDirective):
    """Cards of the gallery: a line ``path | caption`` each, or ``path | caption | script function`` with its code."""

    has_content = True

    def run(self):
        """Return the nodes of all cards."""
        cards = []
        for line in self.content:
            path, caption, *code = line.split(" | ")
            alt = re.split("[.?] ", caption)[0]
            card = [f".. figure:: {path}", f"   :alt: {alt}", "   :width: 100%", "", f"   {caption}", ""]
            if code:
                script, function = code[0].split()
                shown = [f".. literalinclude:: {script}", f"   :pyobject: {function}", ""]
                opened, closed = ([".. raw:: html", "", f"   {html}", ""] for html in _folded("Code"))
                card += [*opened, *shown, *closed]
            cards += [".. container:: card", "", *(f"   {row}" for row in card)]
        return self.parse_text_to_nodes("\n".join([".. container:: gallery", "", *(f"   {row}" for row in cards)]))


def _folded(title):
    return f"<details><summary>{title}</summary>", "</details>"


def _inline_math(self, node):
    self.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _displayed_math(self, node):
    self.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app):
    # Browsers draw MathML by themselves; MathJax would have to be fetched from the network by every reader.
    app.add_html_math_renderer("mathml", (_inline_math, None), (_displayed_math, None))
    app.add_directive("measured", MeasuredTable)
    app.add_directive("pictures", Pictures)
    for name in pymc_kernel.__all__:
        public = getattr(pymc_kernel, name)
        if inspect.isclass(public):  # Sphinx would show the arguments of PyMC's __new__
            signature = inspect.signature(public.__init__)
            public.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
    app.connect("autodoc-process-docstring", _escape_bars)
    app.connect("autodoc-process-docstring", _link_to_its_method, priority=900)  # after the sections are made
    app.connect("autodoc-skip-member", _skip_members)
