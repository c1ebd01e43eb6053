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
DRIFT = "drift"
EFFECTIVE_SHARE = "effective_share"
LOG_EVIDENCE_OF_ITERATION = "log_evidence_of_iteration"
MEAN_SCALE = "mean_scale"

LOG_EVIDENCE = "log_evidence"  # of each chain of either

# Of posteriors that are learned from simulations.
HELD_OUT_SHIFT = "held_out_shift"
HELD_OUT_SPREAD = "held_out_spread"
LEARNING_ERROR = "learning_error"
NUM_EFFECTIVE = "num_effective"
NUM_FAILED = "num_failed"
NUM_HELD_OUT = "num_held_out"
SECOND_OPINION_EFFECTIVE = "second_opinion_effective"
SECOND_OPINION_OUTSIDE = "second_opinion_outside"
SECOND_OPINION_SHIFT = "second_opinion_shift"
SECOND_OPINION_SPREAD = "second_opinion_spread"
SPREAD_LEARNING_ERROR = "spread_learning_error"
TYPICALITY = "typicality"
