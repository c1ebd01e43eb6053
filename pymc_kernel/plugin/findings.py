"""One warning of all that speaks against an answer."""

import warnings

__all__ = ["warn_of_findings"]


def warn_of_findings(problems: list[str], advice: str, stacklevel: int) -> None:
    """Give one warning of all problems, if there are any."""
    if problems:
        warnings.warn(
            f"this posterior should not be trusted: {'; '.join(problems)}. {advice}", stacklevel=stacklevel + 1
        )
