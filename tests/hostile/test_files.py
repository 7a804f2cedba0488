"""Hostile files fed to each command: one sentence, nothing touched, nothing executed."""

import pytest

from tests.hostile.feeding import COMMANDS, KINDS, MORE, fed

FED = [
    pytest.param(command, make, id=f"{command.split(' IN')[0]}-{make.__name__}", marks=marks)
    for commands, marks in ((COMMANDS, ()), (MORE, pytest.mark.slow))
    for kind, makers in KINDS.items()
    for make in makers.values()
    for command in commands[kind]
]
METADATA_ALONE = {
    *("absurd_frame", "bad_chunk", "group_loop", "tiff_loop", "zarr_chunks", "zarr_zero_chunks", "zarr_short"),
    *("empty_list", "cxi_far", "cxi_zero"),
}
"""What `info` may describe: it reads no frames."""
RIGHT = {("subtomo convert", "empty_list"), ("convert", "tiff_loop")}


@pytest.mark.parametrize(("command", "make"), FED)
def test_refused_in_one_sentence(command, make, tmp_path):
    found = fed(command, make, tmp_path)
    assert found.faults() == [], found
    if found.code == 0:
        may = make.__name__ in METADATA_ALONE and found.command.startswith("info")
        assert may or (command.split(" IN")[0], make.__name__) in RIGHT or command.startswith("slurm"), found
