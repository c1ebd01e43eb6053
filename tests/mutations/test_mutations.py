"""How a change is made; whether the list fits the package, ``make mutations`` says first of all."""

import pytest

from tests.mutations import run

CHANGE = run.Mutation("linalg.py", "a + b", "a - b", ("tests/test_linalg.py",))


def test_a_text_that_stands_there_once_is_changed():
    assert run.mutated("x = a + b\n", CHANGE) == "x = a - b\n"
    for source in ("", "a + b, a + b"):
        with pytest.raises(ValueError, match="stands once"):
            run.mutated(source, CHANGE)


def test_a_list_that_does_not_fit_is_said():
    changes = [
        CHANGE._replace(old="no formula of this file"),
        CHANGE._replace(file="no_such_file.py"),
        CHANGE._replace(old="import math\n", new="import\n"),
        CHANGE._replace(old="import math\n", new="", tests=("-k", "cholesky")),
    ]
    said = run.misfits(changes)
    assert len(said) == len(changes)
    for words, wanted in zip(said, ("0 times", "no_such_file", "syntax", "has no tests at -k"), strict=True):
        assert wanted in words
