"""What is measured: ``python -m benchmarks.NAME`` measures, prints and writes its tables; ``--help`` lists its options.

A script is its targets and methods; ``harness`` does the rest. ``targets`` and ``posteriors`` have known answers.
"""
