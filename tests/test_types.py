"""A type checker sees what users call: every parameter and result of the public functions has a type."""

import inspect
from importlib.resources import files

import pytest

import pymc_kernel as pk


def public_functions():
    for name in pk.__all__:
        value = getattr(pk, name)
        if inspect.isclass(value):
            yield pytest.param(value.__init__, id=name)
        elif inspect.isfunction(value):
            yield pytest.param(value, id=name)


@pytest.mark.parametrize("function", list(public_functions()))
def test_signatures_have_types(function):
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    assert [p.name for p in parameters if p.annotation is p.empty] == []
    assert signature.return_annotation is not signature.empty


def test_the_package_says_that_it_has_types():
    assert files(pk).joinpath("py.typed").is_file()
