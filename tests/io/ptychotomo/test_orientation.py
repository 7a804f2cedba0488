"""Case C18 of joint scans: axes, signs and the sense of rotation, from the file to the volume.

Four balls that differ in size and density lie in four corners. A scan that is stored another way round gives another
volume, and the right one with the option that says so.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo import ptychotomo
from dtomo.io.ptychotomo.turning import turned
from dtomo.ptychotomo.signs import AGAINST, correlation, moments
from dtomo.simulate.balls import Balls
from dtomo.simulate.ptychotomo import PtychotomoTruth, simulate_ptychotomo

SIZE, FRAME, ANGLES = 24, 10, 12


@functools.cache
def sample() -> Balls:
    middles = np.array([[-4, -4, -3], [4, -3, 4], [3, 4, -4], [-3, 3, 4.0]])
    return Balls(middles, np.array([3, 2.5, 2, 1.5]), 0.05 * np.array([-1 + 0.1j, -1.5 + 0.1j, -2 + 0.2j, -3 + 0.2j]))


def simulated(path: Path, **more: Any) -> PtychotomoTruth:
    return simulate_ptychotomo(path, SIZE, angles=ANGLES, frame=FRAME, step=3, sample=sample(), **more)


def likeness(path: Path, truth: PtychotomoTruth, **options: Any) -> float:
    """Correlation of the δ found with the true one, in the middle."""
    data = ptychotomo.open(path, **options)
    found = ptychotomo.reconstruct(data, epochs=12, refine=(), signs=False)
    down = round(float(data.frames.positions[:, 0].min() - truth.positions[:, 0].min()))  # images have rows to spare
    beside = (data.image_shape[1] - SIZE) // 2
    across = slice(4 + beside, 20 + beside)
    delta, true = found.delta[4 + down : 20 + down, across, across], -truth.volume[4:20, 4:20, 4:20].real
    return float(np.corrcoef(delta.ravel(), true.ravel())[0, 1])


def replaced(file: h5py.File, name: str, values: NDArray[Any]) -> None:
    del file[name]
    file[name] = values


def transposed(file: h5py.File) -> None:
    replaced(file, "frames", np.swapaxes(file["frames"][()], 1, 2))
    replaced(file, "positions", file["positions"][()][:, ::-1])
    replaced(file, "probe", np.swapaxes(file["probe"][()], 1, 2))


def reversed_(file: h5py.File) -> None:
    file["angles"][()] = -file["angles"][()]


def conjugated(file: h5py.File) -> None:
    replaced(file, "frames", turned(file["frames"][()]))
    replaced(file, "probe", file["probe"][()].conj())


@pytest.mark.parametrize(
    ("store", "option"),
    [
        (transposed, {"rotation_axis": "columns"}),
        (reversed_, {"reverse_angles": True}),
        (conjugated, {"sign": -1}),
    ],
)
def test_what_is_stored_another_way_round(
    tmp_path: Path, store: Callable[[h5py.File], None], option: dict[str, Any]
) -> None:
    truth = simulated(tmp_path / "scan.h5")
    with h5py.File(tmp_path / "scan.h5", "r+") as file:
        store(file)
    assert likeness(tmp_path / "scan.h5", truth, **option) > 0.9
    assert likeness(tmp_path / "scan.h5", truth) < 0.5


@pytest.mark.parametrize(
    ("change", "option"),
    [
        (lambda moves: -moves, {"motion": "probe"}),
        (lambda moves: moves * (-1, 1, 1), {"flip_columns": True}),
        (lambda moves: moves * (1, -1, 1), {"flip_rows": True}),
        (lambda moves: moves[:, [1, 0, 2]], {"swap_axes": True}),
    ],
)
def test_positions_of_single_files(tmp_path: Path, change: Callable[..., Any], option: dict[str, Any]) -> None:
    truth = simulated(tmp_path / "scan", separate=True)
    name = "entry_1/sample_1/geometry_1/translation"
    for path in (tmp_path / "scan").glob("*.cxi"):
        with h5py.File(path, "r+") as file:
            file[name][()] = change(file[name][()])
    probe = np.load(tmp_path / "scan" / "probe.npy")
    assert likeness(tmp_path / "scan", truth, probe=probe, **option) > 0.75
    assert likeness(tmp_path / "scan", truth, probe=probe) < 0.5


@pytest.mark.parametrize("signs", [True, False])
def test_the_wrong_sign_is_doubted_and_the_right_one_not(tmp_path: Path, signs: bool) -> None:
    """δ is known up to a constant only, so its mean says nothing; how it goes with β does."""
    simulate_ptychotomo(tmp_path / "scan.h5", 32, angles=12, frame=16, step=5, photons=1e5)
    wanted: dict[str, Any] = {"epochs": 15, "signs": signs}
    right = ptychotomo.reconstruct(ptychotomo.open(tmp_path / "scan.h5"), **wanted)
    assert correlation(moments(right.volume)) > AGAINST
    with h5py.File(tmp_path / "scan.h5", "r+") as file:
        conjugated(file)
    wrong = ptychotomo.reconstruct(ptychotomo.open(tmp_path / "scan.h5"), **wanted)
    assert correlation(moments(wrong.volume)) < AGAINST
    again = ptychotomo.reconstruct(ptychotomo.open(tmp_path / "scan.h5", sign=-1), **wanted)
    assert correlation(moments(again.volume)) > AGAINST
    assert again.volume.tobytes() == right.volume.tobytes()


def test_the_correlation_is_that_of_numpy_in_any_slabs() -> None:
    random = np.random.default_rng(0).standard_normal((2, 6, 9, 9))
    volume = random[0] + 0.4j * (random[1] - random[0])
    y, x = np.ogrid[:9, :9]
    inside = np.hypot(y - 4, x - 4) <= 4
    whole = correlation(moments(volume))
    assert whole == pytest.approx(np.corrcoef(-volume.real[:, inside].ravel(), volume.imag[:, inside].ravel())[0, 1])
    assert correlation(moments(volume[:2]) + moments(volume[2:])) == pytest.approx(whole)
    assert correlation(moments(np.full((2, 5, 5), 1 + 1j))) == 0
    assert correlation(np.zeros(6)) == 0
