"""The unknown part of a model: its black boxes as rows, grouped by what is learned together."""

from typing import NamedTuple

import numpy as np
import pymc as pm
from pymc.vartypes import continuous_types
from pytensor.graph import ancestors
from pytensor.scan.op import Scan
from pytensor.tensor.blockwise import Blockwise

from pymc_kernel.plugin.emulation.black_boxes import find_black_boxes
from pymc_kernel.plugin.emulation.evaluated import Evaluated, TrueModel
from pymc_kernel.plugin.emulation.parts import Part, Rows, parts_of, rows_of
from pymc_kernel.plugin.model.estimated import EstimatedLogLikelihoodOp, estimated_terms
from pymc_kernel.plugin.model.interpreter import of_position
from pymc_kernel.plugin.model.priors import STARTS_TRIED, ModelPrior, first_places, initial_position

_MOST_INPUTS = 15  # of a row: a trend alone has 136 coefficients then
# Loeppky, Sacks and Welch (2009). With one batch, 7 of 14 searches on hares and lynx never left a lesser mode.
_FIRST_ROWS = 10  # for each input of a function


class Unknown(NamedTuple):
    """The black boxes of a model."""

    true: TrueModel
    calls: list[Rows]
    parts: list[Part]

    def inputs_of(self, part: Part, evaluated: Evaluated) -> np.ndarray:
        """Return the inputs (b, k) of a part in an evaluation."""
        return np.concatenate([self.calls[i].inputs(evaluated.inputs[i]) for i in part.calls])

    @property
    def may_go_on(self) -> bool:
        """Whether evaluations have to show if the posterior extends to where nothing was evaluated.

        Where there are several rows, other rows show it; with estimates, noise would hide it.
        """
        return not self.estimated and all(part.is_row for part in self.parts)

    @property
    def estimated(self) -> list[int]:
        """Numbers of the calls that are estimates."""
        return [i for i, call in enumerate(self.calls) if call.is_estimate]

    @property
    def repeats(self) -> int:
        """Evaluations at each place: with estimates two, one after the other, whose noises are independent."""
        return 2 if self.estimated else 1

    @property
    def batch_size(self) -> int:
        """Evaluations in a round: two for each coefficient of a linear function of the inputs, and two."""
        return 2 * (max(part.like.sizes[0] for part in self.parts) + 2)

    @property
    def design_size(self) -> int:
        """First places to learn outputs from: enough for ten rows for each input; none for log likelihoods.

        A function learned from fewer is too smooth, and chains never leave a mode that they found on it. A log
        likelihood at prior draws says little about a posterior that is far away.
        """
        parts = (part for part in self.parts if not (part.is_term or part.like.is_estimate))
        sizes = ((part.like.sizes[0], int(np.bincount(part.functions).min())) for part in parts)
        return max((-(-_FIRST_ROWS * num_inputs // fewest_rows) for num_inputs, fewest_rows in sizes), default=0)

    def check_sizes(self) -> None:
        """Raise ``ValueError`` where a row has more inputs than can be learned from few evaluations."""
        for call in (part.like for part in self.parts):
            if call.sizes[0] > _MOST_INPUTS:
                raise ValueError(
                    f"{call.box.name} has {call.sizes[0]} inputs that depend on free variables, more than can be "
                    f"learned from few evaluations ({_MOST_INPUTS}). Compute fewer from them in the model, call it for "
                    "each subject by itself, or use pk.sample_khmc()."
                )


def unknown_of(model: pm.Model, rng: np.random.Generator, only_parts: bool = False) -> Unknown | None:
    """Return what is unknown in a model; None where it has gradients everywhere.

    Costs some evaluations, at draws of the prior and to probe calls. With ``only_parts`` the result is also None where
    the log likelihood is unknown as a whole; no black box is called to see that. Raises ``TypeError`` or ``ValueError``
    for what cannot be learned.
    """
    boxes = find_black_boxes(model)
    if not boxes or (only_parts and _is_whole(model, boxes)):
        return None
    _refuse(model, boxes)
    true = TrueModel(model, boxes, rng)
    first, others = true.learn_shapes(first_places(model, ModelPrior(model), None, STARTS_TRIED, rng))
    # From the place that is a draw: at an initial point of zeros, products with another row's input hide it.
    calls = [rows_of(*given) for given in zip(boxes, others.inputs, others.outputs, first.inputs, strict=True)]
    return Unknown(true, calls, parts_of(calls))


def _is_whole(model, boxes):
    """Return whether all black boxes take all parameters and give one number: no part is known."""
    outputs = {v for box in boxes for v in box.node.outputs}
    if any(set(v.type.shape) - {1} for v in outputs) or len(outputs) > len(boxes):
        return False
    inputs = [v for box in boxes for v in box.inputs]
    if outputs & set(ancestors(inputs)):
        return False
    place = initial_position(model)
    inputs_at = of_position(model, model.initial_point(random_seed=0), model.replace_rvs_by_values(inputs))
    sizes = iter([np.size(v) for v in inputs_at(place)])
    return all(sum(next(sizes) for _ in box.inputs) == place.size for box in boxes)


def _refuse(model, boxes):
    """Raise where NUTS could not sample the model even if its black boxes had gradients, or these cannot be learned."""
    _refuse_estimates(model, boxes)
    discrete = [v.name for v in model.value_vars if v.dtype not in continuous_types]
    if discrete:
        raise TypeError(
            f"what is learned of black boxes is for NUTS, which moves continuous variables only, but "
            f"{', '.join(discrete)} {'is' if len(discrete) == 1 else 'are'} discrete. Sum them out of the model, or "
            "take pk.sample_khmc, which leaves them to PyMC's steps."
        )
    single = [v.name for v in model.value_vars if v.dtype == "float32"]
    if single:
        raise ValueError(
            f"black boxes are learned in double precision, but {', '.join(single)} have single precision: build the "
            'model with pytensor.config.floatX = "float64", the default.'
        )
    for box in boxes:
        if isinstance(box.node.op, Scan):
            raise ValueError(
                "a function without gradient is called inside of pytensor.scan, where it cannot be learned by itself: "
                "write the loop in Python, or put all of it into the function."
            )
        if any(v.type.dtype not in continuous_types for v in box.inputs):
            raise TypeError(
                f"{box.name} has a whole number as an input that depends on free variables, by which nothing can be "
                "differentiated: give it the number before it was rounded, or pk.sample_smc() the model."
            )


def _refuse_estimates(model, boxes):
    """Raise where an estimate is not one number of one call that stands by itself in the model."""
    names, _ = estimated_terms(model.logp())
    own = [box for box in boxes if isinstance(box.op, EstimatedLogLikelihoodOp)]
    known = {box.op.term_name for box in own}
    outputs = {v for box in boxes for v in box.node.outputs}
    problems = [f"{name} is no pk.EstimatedLikelihood with parameters" for name in names if name not in known]
    problems += [f"{box.op.term_name} is pointwise" for box in own if box.op.pointwise]
    problems += [f"{box.op.term_name} reuses its noise" for box in own if box.op.reuse_noise]
    problems += [f"{box.op.term_name} was vectorized" for box in own if isinstance(box.node.op, Blockwise)]
    depend = [box for box in own if outputs & set(ancestors(box.inputs))]
    problems += [f"{box.op.term_name} depends on what another black box returns" for box in depend]
    if problems:
        raise ValueError(
            f"the log density of this model is only estimated, as pk.emulate cannot learn it: {'; '.join(problems)}. "
            "It learns likelihoods of pk.EstimatedLikelihood, each one number and with new noise for each estimate. "
            "Use pk.sample_khmc(), which keeps the estimates that it accepts."
        )
