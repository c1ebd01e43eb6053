"""What no sampler can promise of the evidence: one sentence for every docstring and page that promises one."""

from textwrap import fill

__all__ = ["UNSEEN_MODE", "says_what_evidence_lacks"]

_MARK = "|unseen mode|"  # where the sentence goes; pages of the documentation use the same mark
UNSEEN_MODE = (
    "A narrow mode on a broad hill is found by no sampler unless a draw happens to fall into it, which in five "
    "dimensions and more is unlikely: the evidence then lacks the mode's mass, no check shows it, and runs that agree "
    "do not rule it out."
)


def says_what_evidence_lacks[T](promising: T) -> T:
    """Put the sentence where the docstring of a function or class has its mark, in lines as of the docstring."""
    sentence = fill(UNSEEN_MODE, 120, initial_indent=" " * 4, subsequent_indent=" " * 4)
    promising.__doc__ = (promising.__doc__ or "").replace(" " * 4 + _MARK, sentence)
    return promising
