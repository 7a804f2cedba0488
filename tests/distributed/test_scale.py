"""The scale model: graphs of large volumes stay small, whatever the number of workers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtomo.distributed import graph
from dtomo.distributed.slab_array import slab_tasks
from dtomo.distributed.slabs import cut

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    target = tmp_path_factory.mktemp("scale") / "scale.json"
    command = [sys.executable, "-m", "benchmarks.scale", "--quick", "--cost", "1.5", "--json", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return list(json.loads(target.read_text())["rows"])


def test_an_iteration_of_64_gigabytes_has_a_graph_below_a_megabyte(rows: list[dict[str, Any]]) -> None:
    assert {row["width"] for row in rows} == {2000}
    assert len(rows) == 6
    for row in rows:
        assert row["graph_bytes"] < 1e6
        assert row["graph_bytes"] < 1e6 / 10 + 1000 * row["tasks"]
        # the build is measured in milliseconds; a second is the machine's, not the graph's
        assert row["build_seconds"] < 1.0


def test_tasks_and_bytes_are_those_of_the_kind(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        sent = row["network_bytes"]
        slabs, used = row["slabs"], row["workers_used"]
        if row["kind"] == "separable":
            assert row["tasks"] == slabs
            assert sent == {}
        if row["kind"] == "coupled":
            assert sent["borders"] == 2 * (used - 1) * 2000 * 2000 * 8
            assert slabs + 2 * (used - 1) < row["tasks"] < 4 * slabs
        if row["kind"] == "shared":
            assert used - 1 <= sent["sums"] / (2048 * 2048 * 8) <= 4 * (used - 1)


def test_more_workers_hold_less_each(rows: list[dict[str, Any]]) -> None:
    memory = {(row["kind"], row["workers"]): row["worker_memory"] for row in rows}
    assert all(memory[kind, 64] < memory[kind, 4] / 4 for kind in ("separable", "coupled", "shared"))


def _function(shared: Any, slab: Any, part: Any) -> Any:
    return part


@pytest.mark.parametrize("count", [10, 1000])
def test_the_graph_grows_by_less_than_a_kilobyte_per_slab(count: int) -> None:
    slabs = cut(count, 1)
    homes = graph.spread(count, [f"tcp://10.0.0.{i}:40000" for i in range(8)])
    operands: list[list[Any]] = [[graph.Ref(("dtomo-slab-0", index))] for index in range(count)]
    size = graph.graph_bytes(slab_tasks("dtomo-slab-1", slabs, homes, _function, None, operands))
    assert size < 5_000 + 300 * count
