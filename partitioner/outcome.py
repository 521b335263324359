"""What a solver says of an integer programme."""

from __future__ import annotations

from dataclasses import dataclass

from stagecut.ir.problem import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The end of a search for the least T."""

    values: FloatArray | None = None
    """Of the variables, in the best solution found; None for none."""
    finished: bool = False
    """Whether nothing better than `values` by more than the gap asked for is left."""
    none_exists: bool = False
    """Whether there is proved to be no solution."""
    refuted: float = 0.0
    """A T in the programme's units that nothing is below."""
