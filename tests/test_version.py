"""The version is the same wherever it is written."""

import re
from pathlib import Path

import pymc_kernel as pk

ROOT = Path(__file__).parent.parent


def test_citation_has_the_version():
    assert f"\nversion: {pk.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_newest_changes_are_those_of_the_version():
    newest, date = re.findall(r"^## (\S+) \((\S+)\)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[0]
    assert newest == pk.__version__
    assert date == re.search(r"date-released: (\S+)", (ROOT / "CITATION.cff").read_text())[1]
