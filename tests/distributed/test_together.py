"""Parties in one process: letters in order, sums that all share, and what happens when one fails."""

from typing import Any

import numpy as np
import pytest

from dtomo.distributed.together import Party, run_here
from dtomo.operators import Peers


def test_letters_come_in_the_order_they_were_sent() -> None:
    def work(peers: Peers) -> list[Any]:
        other = 1 - peers.number
        for value in range(5):
            peers.send(other, (peers.number, value))
        return [peers.receive(other) for _ in range(5)]

    assert run_here(work, 2) == [[(1, n) for n in range(5)], [(0, n) for n in range(5)]]


def test_all_have_the_same_sums() -> None:
    def work(peers: Peers) -> tuple[float, str, list[int]]:
        total = peers.total(np.array([0.1 + peers.number]))
        return total.item(), peers.first(f"from {peers.number}"), peers.gathered(peers.number)

    found = run_here(work, 4)
    assert found == [(0.1 + 1.1 + 2.1 + 3.1, "from 0", [0, 1, 2, 3])] * 4


def test_what_one_raises_ends_all() -> None:
    reports: list[Any] = []

    def work(peers: Party) -> None:
        peers.report(peers.number)
        if peers.number == 1:
            raise ValueError("no data")
        peers.receive(1)

    with pytest.raises(ValueError, match="no data"):
        run_here(work, 3, reports.append)
    assert 1 in reports
