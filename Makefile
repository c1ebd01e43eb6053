# Every target sets itself up: .venv is made from nothing where it is missing or older than pyproject.toml.
PYTHON ?= $(shell command -v python$(shell cat .python-version) || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: demo test test-slow mutations bench format clean

# Without bytecode of what is never imported: making it all would be a third of the time.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' || \
		{ echo "Python 3.12 or newer is needed; point to one with: make PYTHON=/path/to/python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-compile -e '.[case-studies,test]'
	@touch $@

demo: $(READY)
	$(RUN) -m case_studies.glass

test: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pytest -q -n 2 --dist worksteal --durations=25

test-slow: $(READY)
	$(RUN) -m pytest -q -n 2 --dist worksteal --runslow

mutations: $(READY)
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(RUN) -m tests.mutations.run

bench: $(READY)
	$(RUN) -m case_studies.benchmarks.zoo
	$(RUN) -m case_studies.benchmarks.zoo_checks
	$(RUN) -m case_studies.benchmarks.surrogate_checks
	$(RUN) -m case_studies.benchmarks.overhead
	$(RUN) -m case_studies.benchmarks.thesis_protocol
	$(RUN) -m case_studies.benchmarks.scores
	$(RUN) -m case_studies.benchmarks.gradient_free
	$(RUN) -m case_studies.benchmarks.more_targets
	$(RUN) -m case_studies.benchmarks.glass_chains
	$(RUN) -m case_studies.benchmarks.history_size
	$(RUN) -m case_studies.hypothetical_acceptance
	$(RUN) -m case_studies.score_convergence
	$(RUN) -m case_studies.benchmarks.stein
	$(RUN) -m case_studies.stein_power
	$(RUN) -m case_studies.approximate_mcmc
	$(RUN) -m case_studies.model_criticism
	$(RUN) -m case_studies.density_estimators
	$(RUN) -m case_studies.benchmarks.smc
	$(RUN) -m case_studies.benchmarks.evidence_bias
	$(RUN) -m case_studies.sensors
	$(RUN) -m case_studies.stochastic_volatility
	$(RUN) -m case_studies.bandwidth
	$(RUN) -m case_studies.kbr_gaussian
	$(RUN) -m case_studies.kbr_filter
	$(RUN) -m case_studies.benchmarks.embeddings
	$(RUN) -m case_studies.benchmarks.simulations
	$(RUN) -m case_studies.benchmarks.community
	$(RUN) -m case_studies.skew_normal_abc
	$(RUN) -m case_studies.lynx

format: $(READY)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
