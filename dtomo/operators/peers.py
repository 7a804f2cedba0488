"""How those who solve one problem together, each with a slab of its own, speak to one another."""

import abc
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Peers(abc.ABC):
    """The others that work on the same problem, seen by one of them.

    All of them run the same program and come to the same calls in the same order; every decision that leads to other
    calls is made from numbers that all of them have (`total`, `first`). Threads and processes are the business of
    `dtomo.distributed`.

    Attributes
    ----------
    number, count
        Which one this is, from 0, and how many there are.
    """

    number: int
    count: int

    @abc.abstractmethod
    def send(self, to: int, value: Any) -> None:
        """Send an array or a value to another one, which receives what one sends in that order. It is not waited for.

        The value must not be changed afterwards.
        """

    @abc.abstractmethod
    def receive(self, source: int) -> Any:
        """Wait for the next value from another one; it must not be changed."""

    def gathered(self, value: Any) -> list[Any]:
        """What all of them gave, in their order."""
        if self.number:
            self.send(0, value)
            found: list[Any] = self.receive(0)
            return found
        found = [value, *(self.receive(other) for other in range(1, self.count))]
        for other in range(1, self.count):
            self.send(other, found)
        return found

    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of what all of them gave, in their order: the same bits for each."""
        found = self.gathered(values)
        total = found[0].copy()
        for other in found[1:]:
            total += other
        return total

    def first(self, value: Any) -> Any:
        """What the first of them gave."""
        if self.number:
            return self.receive(0)
        for other in range(1, self.count):
            self.send(other, value)
        return value
