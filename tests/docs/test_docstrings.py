"""The examples in docstrings of public names run as written, and give what they show."""

import doctest
import warnings

import matplotlib.pyplot as plt
import pytest

import pymc_kernel as pk

EXAMPLES = {
    name: found
    for name in pk.__all__
    if (text := getattr(pk, name).__doc__) and ">>>" in text
    for found in [doctest.DocTestParser().get_doctest(text, {}, name, None, 0)]
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name):
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small examples may have few draws
        result = runner.run(EXAMPLES[name])
    plt.close("all")
    assert result.failed == 0
    assert result.attempted > 0


def test_every_function_and_class_has_an_example():
    modules = {name for name in pk.__all__ if type(getattr(pk, name)).__name__ == "module"}
    # What calls return, and abstract settings that another example shows.
    shown_elsewhere = {"Emulation", "LearnedFeatures", "ASMC"}
    assert set(pk.__all__) - modules - shown_elsewhere == set(EXAMPLES)
