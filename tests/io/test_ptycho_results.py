"""Results of ptychography: every bit comes back, under CDTools' names, and no file is ever half there."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml
import zarr

from dtomo.algorithms.resolution import fourier_correlation
from dtomo.errors import UserError
from dtomo.io.ptycho import results
from dtomo.io.ptycho.results import read_results, write_results
from dtomo.ptycho.result import PtychoResult

ROOT = Path(__file__).resolve().parents[2]
FRAMES, SIZE = 7, 16


def noise(*shape, seed=0):
    random = np.random.default_rng(seed)
    return (random.normal(size=shape) + 1j * random.normal(size=shape)).astype(np.complex64)


def result(modes=2, object_modes=1, slices=1, **changes):
    positions = np.random.default_rng(1).uniform(0, 20, (FRAMES, 2))
    whole = {
        "object": noise(object_modes, slices, 40, 37),
        "probe": noise(modes, SIZE, SIZE, seed=1),
        "positions": positions,
        "start_positions": positions + 0.3,
        "history": np.array([3.0, 2.0, 1.5]),
        "background": np.abs(noise(SIZE, SIZE)).astype(np.float32),
        "scale": np.linspace(0.9, 1.1, FRAMES, dtype=np.float32),
        "frame_error": np.arange(FRAMES, dtype=np.float64),
        "pixel_size": (8e-9, 9e-9),
        "wavelength": 1.4e-10,
        "origin": (-3.0, 11.5),
        "settings": {"engine": "lsqml", "epochs": 3, "refine": ["positions"], "options": {"beta": 0.9}, "µ": None},
    }
    return PtychoResult(**whole | changes)


def same(one, other):
    """Both results have the same values, types and bits."""
    for field in dataclasses.fields(PtychoResult):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if field.name == "frc" and first is not None:
            assert all(np.array_equal(getattr(first, k), getattr(second, k)) for k in vars(first))
        elif isinstance(first, np.ndarray):
            assert second.dtype == first.dtype, field.name
            assert second.shape == first.shape, field.name
            assert second.tobytes() == first.tobytes(), field.name
        else:
            assert second == first, field.name
            assert type(second) is type(first), field.name


FULL = {
    "plain": {},
    "near": {"near_field": True, "distance": 1.5e-3, "loss": "poisson"},
    "little": dict.fromkeys(("start_positions", "background", "scale", "frame_error", "pixel_size", "wavelength")),
    "modes": {"modes": 3, "object_modes": 2, "exponential": True},
    "slices": {"modes": 1, "slices": 3},
    "opr": {"variable_probe": noise(2, 2, SIZE, SIZE, seed=5), "probe_weights": noise(FRAMES, 2, seed=6)},
    "frc": {"frc": fourier_correlation(noise(20, 20), noise(20, 20, seed=1), pixel_size=8e-9)},
    "basis": {"basis": np.array([[1e-8, 0], [0, 1e-8], [0, 0]]), "background": None, "oversampling": 2},
    "double": {"object": noise(1, 1, 30, 30).astype(np.complex128), "history": np.zeros(0)},
}


@pytest.mark.parametrize("name", ["out.h5", "out.zarr"])
@pytest.mark.parametrize("kind", FULL)
def test_every_bit_comes_back(tmp_path, kind, name):
    written = result(**FULL[kind])
    assert write_results(tmp_path / name, written) == (tmp_path / name).resolve()
    again = read_results(tmp_path / name)
    if written.start_positions is None:
        assert again.start_positions is None
    same(written, again)
    assert [item.name for item in tmp_path.iterdir()] == [name]


def test_names_units_and_signs_are_those_of_cdtools(tmp_path):
    written = result()
    write_results(tmp_path / "out.h5", written)
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["obj"].shape == (40, 37)
        assert file["obj"].dtype == np.complex64
        np.testing.assert_array_equal(file["probe"][:], written.probe)
        np.testing.assert_array_equal(file["weights"][:], written.scale)
        np.testing.assert_array_equal(file["obj_basis"][:], [[0, -9e-9], [-8e-9, 0], [0, 0]])
        np.testing.assert_array_equal(file["probe_basis"][:], file["obj_basis"][:])
        background = file["background"][:]
        assert background[SIZE // 2, SIZE // 2] == written.background[0, 0] ** 2
        moves, before = file["translations"][:], file["original_translations"][:]
        assert file["wavelength"][()] == 1.4e-10
        assert file["oversampling"][()] == 1
        assert file["epoch"][()] == 3
        np.testing.assert_array_equal(file["loss_history"][:], [3, 2, 1.5])
        assert file["loss_function"].asstr()[()] == "amplitude_mse"
        assert "3 epochs" in file["training_history"].asstr()[()]
        assert yaml.safe_load(file["dtomo/settings"].asstr()[()]) == written.settings
        assert '"numpy"' in file["dtomo/versions"].asstr()[()]
    # metres to pixels as CDTools does it, by the pseudo-inverse of the basis
    places = moves @ np.linalg.pinv([[0, -9e-9], [-8e-9, 0], [0, 0]]).T
    np.testing.assert_allclose(places, written.positions + np.array([-3, 11.5]), rtol=1e-12)
    np.testing.assert_allclose((before - moves) / [-9e-9, -8e-9, 1], [[0.3, 0.3, 0]] * FRAMES, atol=1e-9)


def test_cdtools_finds_what_its_model_is_made_from(tmp_path):
    """As ``FancyPtycho.from_results_h5`` and its interaction take them."""
    written = result()
    write_results(tmp_path / "out.h5", written)
    with h5py.File(tmp_path / "out.h5") as file:
        state = {name: item[()] for name, item in file["state_dict"].items()}
        assert file["model_class"].asstr()[()] == "FancyPtycho"
        assert isinstance(file["state_dict"].get("obj", getlink=True), h5py.SoftLink)
    moves = state["original_translations"] @ np.linalg.pinv(state["obj_basis"]).T
    places = moves - state["min_translation"] + state["translation_scale"] * state["translation_offsets"]
    np.testing.assert_allclose(places, written.positions, atol=1e-5)
    assert np.abs(state["probe"][0]).max() == pytest.approx(1)
    np.testing.assert_allclose(state["probe_norm"] * state["probe"], written.probe, rtol=1e-5)
    np.testing.assert_array_equal(state["obj"], written.object[0, 0])
    pixels = np.linalg.norm(state["det_basis"], axis=0)  # wavelength · distance / (N · pixel), as everywhere
    np.testing.assert_allclose(1.4e-10 * state["det_distance"] / (SIZE * pixels), written.pixel_size, rtol=1e-6)
    assert state["background"][SIZE // 2, SIZE // 2] == written.background[0, 0]
    np.testing.assert_array_equal(state["surface_normal"], [0, 0, 1])


@pytest.mark.parametrize("kind", ["near", "little", "modes", "slices", "basis"])
def test_what_cdtools_has_no_model_for_has_no_state(tmp_path, kind):
    write_results(tmp_path / "out.h5", result(**FULL[kind]))
    with h5py.File(tmp_path / "out.h5") as file:
        assert "state_dict" not in file


def cdtools_result(path, written):
    """As CDTools writes it: what dtomo writes for it, and nothing else."""
    write_results(path, written)
    with h5py.File(path, "a") as file:
        for name in ("obj", "obj_basis", "probe_basis", "weights", "original_translations"):
            del file[f"state_dict/{name}"]
            file[f"state_dict/{name}"] = file[name][()]
        del file["dtomo"]
    return path


def test_a_result_of_cdtools(tmp_path):
    written = result(exponential=True)
    again = read_results(cdtools_result(tmp_path / "out.h5", written))
    np.testing.assert_array_equal(again.object, written.object)
    np.testing.assert_allclose(again.probe, written.probe)
    np.testing.assert_allclose(again.positions, written.positions, atol=1e-5)
    np.testing.assert_allclose(again.start_positions, written.start_positions, atol=1e-5)
    np.testing.assert_allclose(again.translations(), written.translations(), atol=1e-12)
    np.testing.assert_array_equal(again.background, written.background)
    np.testing.assert_array_equal(again.scale, written.scale)
    assert again.exponential
    assert again.pixel_size == pytest.approx(written.pixel_size)
    assert again.loss == "amplitude"


def test_results_of_cdtools_that_are_not_read(tmp_path):
    mixed = cdtools_result(tmp_path / "opr.h5", result(**FULL["opr"]))
    with pytest.raises(UserError, match="mix modes"):
        read_results(mixed)
    path = cdtools_result(tmp_path / "basis.h5", result())
    with h5py.File(path, "a") as file:
        del file["obj_basis"]
        file["obj_basis"] = np.zeros((2, 2))
    with pytest.raises(UserError, match=r"a basis \(3, 2\)"):
        read_results(path)


def test_shapes_of_objects_with_modes_and_slices(tmp_path):
    for number, (modes, slices, shape) in enumerate(((1, 3, (3, 40, 37)), (2, 1, (2, 40, 37)), (2, 3, (2, 3, 40, 37)))):
        write_results(tmp_path / f"{number}.h5", result(object_modes=modes, slices=slices))
        with h5py.File(tmp_path / f"{number}.h5") as file:
            assert file["obj"].shape == shape


def test_weights_times_probes_are_the_variable_probe_of_a_frame(tmp_path):
    written = result(**FULL["opr"])
    write_results(tmp_path / "out.zarr", written)
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    probes = np.einsum("fmk,krc->fmrc", group["weights"][:], group["probe"][:])
    mixed = written.probe + np.einsum("fk,kmrc->fmrc", written.probe_weights, written.variable_probe)
    np.testing.assert_allclose(probes, written.scale[:, None, None, None] * mixed, rtol=1e-5, atol=1e-6)


def test_near_field_backgrounds_are_left_as_they_lie(tmp_path):
    written = result(near_field=True)
    write_results(tmp_path / "out.h5", written)
    with h5py.File(tmp_path / "out.h5") as file:
        np.testing.assert_array_equal(file["background"][:], written.background**2)


def test_without_a_pixel_size_lengths_are_pixels(tmp_path):
    write_results(tmp_path / "out.h5", result(pixel_size=None, origin=(0.0, 0.0)))
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["dtomo/units"].asstr()[()] == "pixels"
        np.testing.assert_allclose(file["translations"][:][:, 1::-1], -result().positions)


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import h5py, zarr
from test_ptycho_results import result
from dtomo.io.ptycho.results import write_results

def killed(self, name, *arguments, **options):
    if "translations" in name:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, name, *arguments, **options)

kind, method = (zarr.Group, "create_array") if {path!r}.endswith("zarr") else (h5py.Group, "create_dataset")
original = getattr(kind, method)
setattr(kind, method, killed)
write_results({path!r}, result(modes=3), overwrite=True)
"""


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("name", ["out.h5", "out.zarr"])
def test_a_killed_writer_leaves_what_was_there(tmp_path, name, there):
    path = tmp_path / name
    before = result(modes=1)
    if there:
        write_results(path, before)
    program = KILLED.format(tests=str(Path(__file__).parent), path=str(path))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    if there:
        same(before, read_results(path))
    else:
        assert not path.exists()
    write_results(path, result(), overwrite=there)
    same(result(), read_results(path))


@pytest.mark.parametrize("name", ["out.h5", "out.zarr"])
def test_an_error_on_the_way_leaves_nothing_behind(tmp_path, name, monkeypatch):
    write_results(tmp_path / name, result(modes=1))

    def full(source, target):
        if ".part" in str(source):
            raise OSError(28, "No space left on device")
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises((UserError, OSError)):
            write_results(tmp_path / name, result(modes=2), overwrite=True)
    same(result(modes=1), read_results(tmp_path / name))
    assert [item.name for item in tmp_path.iterdir()] == [name]


def test_what_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "out.h5"
    write_results(path, result())
    with pytest.raises(UserError, match="exists"):
        write_results(path, result())
    with pytest.raises(UserError, match="settings of a result"):
        write_results(path, result(settings={"path": Path("/x")}), overwrite=True)
    same(result(), read_results(path))
    with pytest.raises(UserError, match="no file"):
        read_results(tmp_path / "none.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["obj"] = 1
    with pytest.raises(UserError, match="no ptychographic result"):
        read_results(tmp_path / "other.h5")
    (tmp_path / "empty.zarr").mkdir()
    with pytest.raises(UserError, match="no Zarr group"):
        read_results(tmp_path / "empty.zarr")
    monkeypatch.setattr(results, "FORMAT", 0)
    with pytest.raises(UserError, match="newer dtomo"):
        read_results(path)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("object", (40, 37)), ("probe", (SIZE, SIZE)), ("start_positions", (FRAMES, 3)), ("background", (8, 8)),
     ("scale", (FRAMES + 1,)), ("probe_weights", (2, FRAMES)), ("basis", (2, 3)), ("history", (2, 2))],
)  # fmt: skip
def test_results_of_other_shapes_are_refused(name, shape):
    with pytest.raises(UserError, match=f"the {name} of a result"):
        result(**{name: np.zeros(shape)})


def test_what_follows_from_a_result():
    small = result(object_modes=1, exponential=True)
    np.testing.assert_allclose(small.transmission, np.exp(1j * small.object), rtol=1e-6)
    assert small.transmission.dtype == np.complex64
    assert result().transmission is not None
    power = (np.abs(small.probe) ** 2).sum((1, 2))
    np.testing.assert_allclose(small.mode_powers, power / power.sum(), rtol=1e-6)
    np.testing.assert_array_equal(result(probe=np.zeros((2, SIZE, SIZE), np.complex64)).mode_powers, 0)
