"""Imported by a process that others are forked from, which then find everything compiled: each long call, made once."""

from tests.plugin import long_calls

long_calls.SECONDS = 0.0
for name in long_calls.CALLS:
    long_calls.run(name, None, None, None)
long_calls.SECONDS = 0.01
