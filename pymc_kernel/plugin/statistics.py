"""Names of statistics that several modules read or write."""

# Groups of a DataTree, and what their statistics run along.
SMC_GROUP, STAGE = "smc_stats", "stage"
PMC_GROUP, ITERATION = "pmc_stats", "iteration"

# Of each stage of sequential Monte Carlo.
ACCEPT = "accept"
CORRELATION = "correlation"
ESS_SHARE = "ess_share"
INVERSE_TEMPERATURE = "inverse_temperature"
LOG_EVIDENCE_INCREMENT = "log_evidence_increment"
MOVES = "moves"

# Of each iteration of population Monte Carlo.
EFFECTIVE_SHARE = "effective_share"
LOG_EVIDENCE_OF_ITERATION = "log_evidence_of_iteration"

LOG_EVIDENCE = "log_evidence"  # of each chain of either

# Of posteriors that are learned from simulations or evaluations.
LEARNING_ERROR = "learning_error"
NUM_FAILED = "num_failed"
