"""The examples of the pages and of the README, as they stand there."""

import ast
import hashlib
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.rst"))
    if not {"_templates", "generated", "tutorials", "_build"} & set(page.relative_to(DOCS).parts)
]
# The page of ``methods/`` that shows each name at work; its entry in the reference links there.
PAGES_OF_METHODS = {
    "adaptive_metropolis": ["AdaptiveMetropolis"],
    "checks": [
        "diagnose",
        "expectation",
        "ksd_test",
        "mmd_test",
        "plot_ksd",
        "plot_stein_thin",
        "stein_thin",
        "summary",
    ],
    "density": ["plot_density"],
    "emulate": ["EmulatedNUTS", "Emulation", "black_boxes", "emulate"],
    "estimated_likelihood": ["EstimatedLikelihood"],
    "kamh": ["KAMH"],
    "kernel_bayes_rule": ["LearnedFeatures", "plot_calibration", "sample_kbr"],
    "kernel_hmc": ["KernelHMC"],
    "learned_likelihood": ["LearnedLikelihood", "sample_likelihood_free"],
    "pmc": ["sample_pmc"],
    "sample_khmc": ["sample_khmc"],
    "sample_surrogate": ["sample_surrogate"],
    "simulate": ["simulate"],
    "simulators": ["KernelABC", "SyntheticLikelihood", "sample_abc"],
    "smc": ["ASMC", "KASMC", "KernelHMCSMC", "plot_smc", "sample_smc"],
    "surrogates": ["plot_score", "unconstrained_draws"],
}


def examples_of(page: Path) -> list[str]:
    """Return the blocks of Python code of a page, reStructuredText or Markdown, from top to bottom."""
    text = page.read_text()
    if page.suffix == ".md":
        return re.findall(r"```python\n(.*?)```", text, flags=re.S)
    blocks = re.findall(r"\.\. code-block:: python\n\n((?:   .*\n|\n)+)", text)
    return [textwrap.dedent(block).strip("\n") + "\n" for block in blocks]


def checksum(blocks: Iterable[str]) -> str:
    """Return what tells blocks of code from others, in whose place kept output would be wrong; layout is no matter."""
    return hashlib.sha256("\n".join(ast.unparse(ast.parse(block)) for block in blocks).encode()).hexdigest()[:12]
