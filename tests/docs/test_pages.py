"""The pages and REPRODUCTION.md: what they name exists, what they quote is in the tables that it is quoted from."""

import ast
import importlib
import inspect
import re
import shlex

import pytest

import pymc_kernel as pk
import pymc_kernel.errors
from benchmarks import harness
from docs.page_examples import DOCS, PAGES, PAGES_OF_METHODS, examples_of
from docs.page_outputs import OUTPUT, mark_of
from docs.tutorial_pages import ORDER
from pymc_kernel.plugin.warn import UNSEEN_MODE
from tests.test_layers import FILES, MATHEMATICS

RESULTS = harness.RESULTS.read_text()


def listed_names(page):
    """Return the names in the lists of a page of the reference."""
    text = (DOCS / "api" / page).read_text()
    blocks = re.findall(r"\.\. autosummary::\n(?:   :.*\n)*\n((?:   [~.\w]+\n)+)", text)
    names = [name.split(".")[-1] for block in blocks for name in block.split()]
    return names + re.findall(r"\.\. (?:auto)?data:: (\w+)", text)


def test_public_names_and_errors_are_in_the_reference_and_lead_to_a_page_that_shows_them():
    names = set(pk.__all__) - set(MATHEMATICS)
    pages = "samplers", "model_parts", "simulation", "draws", "pictures"
    assert sorted(name for page in pages for name in listed_names(f"{page}.rst")) == sorted(names)
    assert sorted(name for names in PAGES_OF_METHODS.values() for name in names) == sorted(names)
    for page, names in PAGES_OF_METHODS.items():
        text = (DOCS / "methods" / f"{page}.rst").read_text()
        assert [name for name in names if not re.search(rf"\b{name}\b", text)] == [], page
    errors = {name for name, kind in vars(pymc_kernel.errors).items() if inspect.isclass(kind)}
    assert errors <= set(listed_names("reports.rst"))


@pytest.mark.parametrize("module", MATHEMATICS)
def test_names_of_modules_are_in_the_reference(module):
    names = set(importlib.import_module(f"pymc_kernel.{module}").__all__)
    listed = listed_names(f"{module}.rst") if module != "rounds" else []  # which has no page of its own
    elsewhere = (names - set(listed)) & {*listed_names("inside.rst"), *listed_names("reports.rst")}
    assert sorted(listed + sorted(elsewhere)) == sorted(names)


def test_each_page_is_in_a_list_and_each_tutorial_has_a_script_and_a_place():
    linked = {DOCS / "index.rst"}
    for page in PAGES:
        for entries in re.findall(r"\.\. toctree::\n(?:   :.*\n)*\n((?:   .+\n)+)", page.read_text()):
            linked |= {page.parent / f"{entry}.rst" for entry in re.findall(r"([\w/]+)>?$", entries, flags=re.M)}
    assert set(PAGES) <= linked
    scripts = {p.stem for p in (DOCS.parent / "tutorials").glob("*.py")} - {"__init__"}
    assert scripts == set(ORDER)
    assert re.findall(r"^   tutorials/(\w+)$", (DOCS / "tutorials.rst").read_text(), flags=re.M) == list(ORDER)


@pytest.mark.parametrize(
    "path",
    sorted({m for p in PAGES for m in re.findall(r"(?:benchmarks|case_studies)[./][\w/]+(?:\.png)?", p.read_text())}),
)
def test_named_scripts_and_pictures_exist(path):
    stem = path.replace(".", "/")
    assert any((DOCS.parent / name).is_file() for name in (path, f"{stem}.py", f"{stem}.md"))


def test_each_picture_is_in_the_gallery_and_tables_that_pages_show_are_in_the_results():
    folders = "benchmarks/figures", "case_studies/figures", "docs/methods/output", "docs/tutorials/output/*"
    pictures = {p.resolve() for folder in folders for p in DOCS.parent.glob(f"{folder}/*.png")}
    shown = re.findall(r"^   (\S+) \| ", (DOCS / "gallery.rst").read_text(), flags=re.M)
    assert {(DOCS / path).resolve() for path in shown} == pictures
    names = re.findall(r"^\.\. measured:: (\S+)$", (DOCS / "measured.rst").read_text(), flags=re.M)
    assert names
    assert all(f"<!-- {name} -->" in RESULTS and f"<!-- /{name} -->" in RESULTS for name in names)


def test_what_promises_evidence_says_what_it_may_lack_in_the_same_words():
    promising = {p.name for p in PAGES if re.search(r"(the|log) evidence\b(?! <)", p.read_text())} - {"index.rst"}
    marked = {p.name for p in PAGES if "|unseen mode|" in p.read_text()}
    assert promising == marked >= {"smc.rst", "pmc.rst", "sample_surrogate.rst", "choosing.rst"}
    for path in ("README.md", "tutorials/several_modes.py"):
        assert UNSEEN_MODE in re.sub(r"\n#? *", " ", (DOCS.parent / path).read_text()), path
    for name in pk.__all__:
        text = " ".join((getattr(pk, name).__doc__ or "").split())
        assert ("log_evidence" in text) <= (UNSEEN_MODE in text), name


# Commands that headings of RESULTS and ZOO name, and what stands below each.
PARTS = re.split(r"^##.*python -m ([\w.]+)", RESULTS + harness.ZOO.read_text(), flags=re.M)[1:]
NUMBER = r"(?<![\w.])(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)"
# By page: numbers that are no results of the command beside them, or follow from its table.
OTHERS = {
    "measured.rst": {"1,000", "10,000", "90", ".25", ".5", "1", "43"},  # units, bounds, a quantile, parameters
    "choosing.rst": {"5", "95", "45", "42"},  # quantiles; rows that are right
    "sample_khmc.rst": {"45"},  # the same
    # Posteriors; runs, those within .05 and with a warning, and of runs with noise; the limit of the evaluations.
    "sample_surrogate.rst": {"27", "81", "78", "22", "16", "13", "500"},
    "neighbors.rst": {"23", ".014", "52", "25", "7"},  # ratios and differences of rows; numbers of rows
    "checks.rst": {"2,000"},  # draws at most, a setting
    "smc.rst": {"1.01"},  # PyMC's limit of R-hat
    "density.rst": {"15", "53"},  # 2.53 / 2.98 and 8.52 / 18.03, off one
    "simulate.rst": {"93", "89"},  # 50.9 / 55.0 and 50.9 / 57.1
    "kamh.rst": {"40", "650", "1.6"},  # 429.8 / 10.6 of glass, 286 / .44 and .71 / .45
    "emulate.rst": {"18"},  # a run without init="adapt_diag", which the script does not write
    "learned_likelihood.rst": {"1,000", "10,000", ".64", ".61", ".53", "100", "94"},  # of benchmarks.community; .940
}


def quotations():
    """Return page, commands and text of the paragraphs that name a command and have numbers in their prose."""
    for page in PAGES:
        for text in re.split(r"\n\n|\n(?= *[-*] )", page.read_text()):
            commands = re.findall(r"python -m ((?:benchmarks|case_studies)\.\w+)", " ".join(text.split()))
            prose = " ".join(re.sub(r"``[^`]*``|:\w+:`[^`]*`|[BFN]\([^)]*\)", "", text).split())
            if commands and set(re.findall(NUMBER, prose)) - OTHERS.get(page.name, set()):
                yield pytest.param(page.name, commands, prose, id=f"{page.stem}-{commands[0]}")


def as_written(number, other, factor=1.0):
    """Return whether a number is another one rounded: to its last decimal, or a large one by a hundredth at most."""
    written = number.replace(",", "")
    half_a_digit = 0.5 * 10.0 ** -len(written.partition(".")[2])
    rounded = 0.01 * float(written) if "," in number else 0.0
    return abs(factor * float(other.replace(",", "")) - float(written)) <= max(half_a_digit, rounded)


@pytest.mark.parametrize(("page", "commands", "text"), list(quotations()))
def test_numbers_beside_a_command_are_in_its_tables(page, commands, text):
    below = "".join(part for command, part in zip(PARTS[::2], PARTS[1::2], strict=True) if command in commands)
    measured = set(re.findall(NUMBER, "\n".join(re.findall(r"^\|.*", below, flags=re.M))))
    for found in re.finditer(NUMBER, text):
        factors = (1.0, 100.0) if text[found.end() :].lstrip().startswith("%") else (1.0,)
        is_there = any(as_written(found[0], other, factor) for other in measured for factor in factors)
        assert is_there or found[0] in OTHERS.get(page, set()), found[0]


METHODS = [page for page in PAGES if page.parent.name == "methods" and examples_of(page)]


@pytest.mark.parametrize("page", METHODS, ids=lambda page: page.stem)
def test_a_method_page_shows_what_its_examples_print(page):
    """The output is of the examples as they stand: ``python -m docs.page_outputs NAME`` writes it anew."""
    shown = re.findall(r"(?:literalinclude|image):: output/([\w.-]+)", page.read_text())
    assert any(name.endswith(".txt") for name in shown)
    for name in shown:
        assert (OUTPUT / name).exists()
        if name.endswith(".txt"):
            assert (OUTPUT / name).read_text().splitlines()[0] == mark_of(page)


def test_warnings_that_pages_explain_are_given():
    """They are texts of the package, with a gap where a number or a name is filled in."""
    texts, explained = [], []
    for node in (node for tree in FILES.values() for node in ast.walk(tree)):
        if isinstance(node, ast.JoinedStr):
            texts.append("".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    for page in PAGES:
        for section in re.findall(r"\nWarnings\n-+\n(.*?)\n[^\n]+\n---", page.read_text(), flags=re.S):
            explained += [" ".join(quoted.split()) for quoted in re.findall(r'\*"(.*?)"\*', section, flags=re.S)]
    known = "\n".join(texts)
    assert [words for words in explained if words not in known] == []
    assert len(explained) >= 20


REPRODUCTION = (harness.ROOT / "REPRODUCTION.md").read_text()
VERDICTS = ("same", "better", "worse", "partly", "other protocol", "not run", "cannot be had")
FIGURES = {  # figures and tables that report results, by a word of the heading of their source
    "thesis": "3.4 3.5 3.6 3.7 4.2 4.3 4.4 4.5 4.6 5.2 5.3 5.4 5.5 5.6 6.2 6.3 8.1 8.2 8.3 8.4 8.5 8.6 8.7 8.8 8.9",
    "JMLR": "1 2 3 4",
    "NIPS": "1 2 3 4",
    "Importance": "1 2 5 6",
    "bandwidth": "2 3 4 5 6 7 8",
}


def rows_of(text):
    """Return the cells of all rows of the tables of a text."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith(("| Source", "|---"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


FIGURE_ROWS = rows_of(REPRODUCTION)


def numbers(text):
    """Return the numbers of a text, links left out."""
    return re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]\d)", re.sub(r"\]\([^)]*\)", "", text))


def test_every_row_has_all_cells_and_a_verdict():
    assert len(FIGURE_ROWS) > 50
    for row in FIGURE_ROWS:
        assert len(row) == 6, row[0]
        assert row[5].startswith(VERDICTS), row[0]
        assert (row[3] == row[4] == "-") or row[4].startswith("`python -m "), row[0]


@pytest.mark.parametrize("source", FIGURES)
def test_every_figure_has_a_row(source):
    (part,) = [part for part in REPRODUCTION.split("\n## ")[1:] if source in part.split("\n")[0]]
    seen = {number for row in rows_of(part) for number in re.findall(r"\d+(?:\.\d+)?", row[0])}
    assert set(FIGURES[source].split()) <= seen


@pytest.mark.parametrize("command", sorted({row[4].strip("`") for row in FIGURE_ROWS if row[4] != "-"}))
def test_commands_start(command):
    name, *arguments = shlex.split(command.removeprefix("python -m "))
    module = importlib.import_module(name)
    if "harness.run(main)" in inspect.getsource(module):
        harness.parser_of(module.main).parse_args(arguments)
    else:
        assert not arguments


@pytest.mark.parametrize("row", [row for row in FIGURE_ROWS if row[3] != "-"], ids=lambda row: row[0])
def test_numbers_are_in_their_table(row):
    marker = row[3].strip("`")
    table = RESULTS.split(f"<!-- {marker} -->")[1].split(f"<!-- /{marker} -->")[0]
    ours, there = ({number.replace(",", "") for number in numbers(text)} for text in (row[2], table))
    assert ours
    assert ours <= there
