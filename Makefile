# Every target sets itself up: .venv is made from nothing where it is missing or older than pyproject.toml.
PYTHON ?= $(shell command -v python$(shell cat .python-version) || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
READY_DOCS := $(VENV)/.ready-docs

# Bytecode is kept at the first import, also where the surroundings forbid it: each of the dozen processes that the
# tests start would compile all that it imports anew, for some ten seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs test test-slow mutations bench format clean

# uv unpacks in a third of pip's time; pip does it where uv cannot. Without bytecode of what is never imported: making
# it all would be a third of the time.
INSTALL = @$(RUN) -m pip install --quiet --disable-pip-version-check --no-compile uv && \
	$(RUN) -m uv pip install --quiet --python $(RUN) -e '.[$(EXTRAS)]' || \
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-compile -e '.[$(EXTRAS)]'

$(READY): EXTRAS := case-studies,test
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' || \
		{ echo "Python 3.12 or newer is needed; point to one with: make PYTHON=/path/to/python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL)
	@touch $@

$(READY_DOCS): EXTRAS := docs
$(READY_DOCS): $(READY)
	$(INSTALL)
	@touch $@

demo: $(READY)
	$(RUN) -m case_studies.glass

# What the tutorials print and draw is kept: python -m docs.tutorial_pages --run makes it anew. Warnings are errors. Links into the
# documentation of PyMC, ArviZ, PyTensor and NumPy need the network: make docs INTERSPHINX=1.
docs: $(READY_DOCS)
	rm -rf docs/api/generated
	$(RUN) -m docs.tutorial_pages
	INTERSPHINX=$(INTERSPHINX) $(RUN) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "The pages begin at docs/_build/html/index.html"

test: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pytest -q -n 2 --dist worksteal --durations=25

test-slow: $(READY)
	$(RUN) -m pytest -q -n 2 --dist worksteal --runslow

mutations: $(READY)
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(RUN) -m tests.mutations.run

bench: $(READY)
	$(RUN) -m benchmarks.zoo
	$(RUN) -m benchmarks.zoo_checks
	$(RUN) -m benchmarks.psis
	$(RUN) -m benchmarks.surrogate_checks
	$(RUN) -m benchmarks.fresh
	$(RUN) -m benchmarks.missing_mass
	$(RUN) -m benchmarks.strangers
	$(RUN) -m benchmarks.overhead
	$(RUN) -m benchmarks.thesis_protocol
	$(RUN) -m benchmarks.scores
	$(RUN) -m benchmarks.learned_parts
	$(RUN) -m benchmarks.learned_strangers
	$(RUN) -m benchmarks.learned_tails
	$(RUN) -m benchmarks.learned_modes
	$(RUN) -m benchmarks.learned_chains
	$(RUN) -m benchmarks.estimated_groups
	$(RUN) -m benchmarks.pymc_notebook
	$(RUN) -m benchmarks.few_evaluations
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-compile -e '.[rivals]' && \
		$(RUN) -m benchmarks.few_evaluations_rivals
	$(RUN) -m benchmarks.workers
	$(RUN) -m benchmarks.gradient_free
	$(RUN) -m benchmarks.noisy_walks
	$(RUN) -m benchmarks.same_budget
	$(RUN) -m benchmarks.more_targets
	$(RUN) -m benchmarks.glass_chains
	$(RUN) -m benchmarks.glass_convergence
	$(RUN) -m benchmarks.glass_acceptance
	$(RUN) -m benchmarks.history_size
	$(RUN) -m benchmarks.hypothetical_acceptance
	$(RUN) -m benchmarks.score_convergence
	$(RUN) -m benchmarks.scaling
	$(RUN) -m benchmarks.first_use
	$(RUN) -m benchmarks.stein
	$(RUN) -m benchmarks.stein_power
	$(RUN) -m benchmarks.ablations
	$(RUN) -m benchmarks.ablation_kbr
	$(RUN) -m benchmarks.approximate_mcmc
	$(RUN) -m benchmarks.austerity
	$(RUN) -m benchmarks.model_criticism
	$(RUN) -m benchmarks.density_estimators
	$(RUN) -m benchmarks.smc
	$(RUN) -m benchmarks.evidence_bias
	$(RUN) -m case_studies.sensors
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-compile -e '.[rivals-evidence]' && \
		$(RUN) -m benchmarks.evidence_rivals
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-compile -e '.[rivals-chains]' && \
		$(RUN) -m benchmarks.pints_problems
	$(RUN) -m benchmarks.stochastic_volatility
	$(RUN) -m benchmarks.bandwidth
	$(RUN) -m benchmarks.bandwidth_posterior
	-$(RUN) -m benchmarks.bandwidth_ks
	$(RUN) -m benchmarks.kbr_gaussian
	$(RUN) -m benchmarks.kbr_sources
	$(RUN) -m benchmarks.kbr_filter
	$(RUN) -m benchmarks.kbr_rotations
	$(RUN) -m benchmarks.embeddings
	$(RUN) -m benchmarks.simulations
	$(RUN) -m benchmarks.community
	$(RUN) -m benchmarks.community_rivals
	$(RUN) -m benchmarks.community_coverage
	$(RUN) -m benchmarks.learned_calibration
	$(RUN) -c 'from case_studies import glass; glass.main(folder="case_studies/figures")'
	$(RUN) -m case_studies.skew_normal_abc
	$(RUN) -m case_studies.lynx
	$(RUN) -m case_studies.reaction_times
	$(RUN) -m case_studies.signalling
	$(RUN) -m case_studies.cholera
	$(RUN) -m case_studies.orbit
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-compile -e '.[simulators]' && \
		$(RUN) -m case_studies.accumulators

format: $(READY)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

clean:
	rm -rf $(VENV) build docs/_build docs/api/generated docs/tutorials/*.rst *.egg-info .pytest_cache .ruff_cache
