"""The search for the largest batch size that fits. Pure."""

from collections.abc import Mapping

# Larger ones are not tried.
LARGEST = 2**16


def next_size(start: int, fits: Mapping[int, bool]) -> int | None:
    """Which batch size to try next: doubled until one does not fit, or halved until one does, then between the two.

    Args:
      start: the first one. fits: the sizes that were tried, and whether each fits.

    Returns:
      The next size, or None if the largest one is known, or not even 1 fits.
    """
    if not fits:
        return start
    too_large = min((size for size, fitted in fits.items() if not fitted), default=None)
    largest = largest_size(fits)
    if too_large is None:
        assert largest is not None
        return min(2 * largest, LARGEST) if largest < LARGEST else None
    if largest is None:
        return too_large // 2 or None
    return (largest + too_large) // 2 if too_large - largest > 1 else None


def largest_size(fits: Mapping[int, bool]) -> int | None:
    """The largest size that fits, below all that do not; None if there is none."""
    too_large = min((size for size, fitted in fits.items() if not fitted), default=None)
    fitting = [size for size, fitted in fits.items() if fitted and (too_large is None or size < too_large)]
    return max(fitting, default=None)
