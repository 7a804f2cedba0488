"""Faults that neighbouring packages had, as their users reported them: dtomo must not have them.

Others of the kind have their tests where the parts are tested: images of a near field that moved with the fraction of
the probe's shift (CDTools #86) in test_near_field.py; gradients of positions (pty-chi #71) and imaginary parts that are
lost in sums (PyTorch #158753) in test_gradients.py and test_adam.py; sums whose order changes from run to run (CuPy
#8350) in test_driver_cluster.py; loaders that run ahead (distributed #6110) in test_streaming.py.
"""

import pickle
import subprocess
import sys
import tracemalloc

import h5py
import numpy as np
import pytest
from matplotlib._pylab_helpers import Gcf
from scipy.ndimage import gaussian_filter, map_coordinates

from dtomo.io.ptycho import masks, open_ptycho
from dtomo.io.sources import ArraySource
from dtomo.ptycho import open as open_scan
from dtomo.ptycho import reconstruct
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptycho.model import PtychoModel
from dtomo.ptycho.setup import prepare
from dtomo.ptycho.start import place_object
from dtomo.report.ptycho_pictures import write_pictures
from dtomo.settings import PtychoSettings
from dtomo.simulate.ptycho import simulate_ptycho


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    return simulate_ptycho(tmp_path_factory.mktemp("scan") / "scan.cxi", size=32, positions=40, modes=1, seed=3)


def symmetric_scan(size):
    """Frames ``(frame, row, column)`` of an object and of positions that a turn by 180° about one point leaves alone.

    The probe lies about pixel N // 2; written with NumPy's transforms alone.
    """
    middle, edge = size // 2, 40
    row = np.arange(size) - middle
    square = row[:, None] ** 2 + row**2
    probe = np.where(np.abs(row[:, None] * row) < middle**2, np.exp(-square / (size / 6) ** 2 * (1 - 0.8j)), 0) * 40
    step = np.stack(np.meshgrid(*2 * [np.arange(-3, 4) * 3], indexing="ij"), -1).reshape(-1, 2)
    noise = gaussian_filter(np.random.default_rng(1).normal(size=(2 * edge + 1, 2 * edge + 1)), 1.5)
    noise = noise + noise[::-1, ::-1]
    image = np.exp(1j * 0.5 * noise / noise.std())  # symmetric about [edge, edge]
    frames = []
    for down, right in edge + step - middle:
        wave = np.fft.ifftshift(probe * image[down : down + size, right : right + size])
        frames.append(np.abs(np.fft.fftshift(np.fft.fft2(wave, norm="ortho"))) ** 2)
    return np.array(frames), edge + step - middle, probe, image, edge


@pytest.mark.parametrize("size", [24, 25])
def test_the_object_of_a_symmetric_scan_lies_where_it_is_and_is_symmetric(size):
    """pty-chi #73: with H / 2 + 0.5 for the middle, objects lay a pixel off their place."""
    frames, positions, probe, image, edge = symmetric_scan(size)
    found = reconstruct(frames, positions, probe=probe, engine="lsqml", batch=len(frames), epochs=60, start="flat")
    near = np.arange(-9, 10)
    places = np.meshgrid(*(edge - start + near for start in found.origin), indexing="ij")  # of pixels: k + origin
    parts = (map_coordinates(part, places, order=5) for part in (found.object[0, 0].real, found.object[0, 0].imag))
    seen = next(parts) + 1j * next(parts)
    real = image[edge - 9 : edge + 10, edge - 9 : edge + 10]
    agreement = {}
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            moved = np.roll(seen, (down, right), (0, 1))
            agreement[down, right] = abs(np.vdot(moved, real)) / np.linalg.norm(moved) / np.linalg.norm(real)
    assert max(agreement, key=agreement.get) == (0, 0)
    assert agreement[0, 0] > 0.99
    turned = seen[::-1, ::-1]
    assert abs(np.vdot(turned, seen)) / np.linalg.norm(seen) ** 2 > 0.998


def test_more_frames_times_modes_than_a_grid_of_blocks_holds():
    """ptypy #622: above 65535 frames × modes the first iteration crashed, however small the frames."""
    frames, modes, size = 9000, 8, 8
    random = np.random.default_rng(0)
    probe = random.normal(size=(modes, size, size)).astype(np.complex64)
    values = {
        "object": np.exp(1j * random.normal(size=(1, 1, 40, 40))).astype(np.complex64),
        "probe": probe,
        "positions": random.uniform(0, 31, (frames, 2)),
    }
    model = PtychoModel((size, size))
    counts = random.poisson(5.0, (frames, size, size)).astype(np.uint8)
    assert frames * modes > 65535
    whole = model.loss_and_gradient(values, FrameBlock(np.arange(frames), counts), ("probe",))
    parts = [
        model.loss_and_gradient(values, FrameBlock(np.arange(frames)[part], counts[part]), ("probe",))
        for part in (slice(0, 4096), slice(4096, None))
    ]
    assert whole[0] == pytest.approx(parts[0][0] + parts[1][0], rel=1e-10)
    both = parts[0][2]["probe"] + parts[1][2]["probe"]
    np.testing.assert_allclose(whole[2]["probe"], both, rtol=1e-3, atol=1e-4 * np.abs(both).max())


@pytest.mark.parametrize("offset", [0.0, -4e5, 3.7e6])
def test_the_object_is_as_large_as_the_scan_and_no_larger(offset):
    """ptypy #511: the array of the object grew from 4800² to 12000 × 16000 pixels, as the origin was counted in."""
    positions = offset + np.random.default_rng(0).uniform(0, (300, 120), (50, 2))
    place = place_object(positions, (64, 48), padding=8)
    least = np.ptp(positions, axis=0) + np.array((64, 48)) + 2 * 8
    assert (np.array(place.shape) >= least).all()
    assert (np.array(place.shape) <= least + 3).all()


def test_positions_follow_the_pixels_of_the_object_when_frames_are_cropped(truth):
    """PyTom #69: shifts were not scaled with the binning."""
    whole, half = open_ptycho(truth.path), open_ptycho(truth.path, crop=16)
    np.testing.assert_allclose(2 * np.array(whole.object_pixel_size), half.object_pixel_size)
    np.testing.assert_allclose(whole.positions_in_pixels(), 2 * half.positions_in_pixels())


def test_opening_a_scan_takes_no_memory_for_its_frames(tmp_path, monkeypatch):
    """ptypy #505: loading took several times the memory of the frames."""
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", (2000, 256, 256), np.uint16, chunks=(1, 256, 256))
        file["positions"] = np.random.default_rng(0).uniform(0, 300, (2000, 2))
    monkeypatch.setattr(masks, "MOST_BYTES", 2**22)
    monkeypatch.setattr(masks, "TOGETHER", 2**20)
    tracemalloc.start()
    try:
        assert open_ptycho(path, position_unit="pixels").shape == (2000, 256, 256)
        assert tracemalloc.get_traced_memory()[1] < 2e7  # of 262 MB
    finally:
        tracemalloc.stop()


HELD = """
import gc, sys, tracemalloc
from dtomo.ptycho import open, reconstruct

held = []
data = open(sys.argv[1])

def on_epoch(report):
    gc.collect()
    held.append(tracemalloc.get_traced_memory()[0])

tracemalloc.start()
reconstruct(data, epochs=14, probe="pattern", defocus=0.0, refine="positions", on_epoch=on_epoch)
print(*held)
"""


@pytest.mark.slow
def test_memory_does_not_grow_from_epoch_to_epoch(truth):
    """RELION #858, CDTools #87: memory crept up until long runs ended."""
    words = [sys.executable, "-c", HELD, str(truth.path)]  # a process of its own: others hold what they like
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=100)
    held = [int(word) for word in done.stdout.split()]
    assert len(held) == 14
    assert max(held[8:]) - held[3] < 20_000  # the object alone has more


def test_pictures_leave_no_figures_behind(truth, tmp_path):
    """CDTools #87: figures that were kept filled the memory."""
    result = reconstruct(open_scan(truth.path), epochs=1, probe="pattern", defocus=0.0)
    assert write_pictures(result, tmp_path / "out.h5")
    assert Gcf.get_num_fig_managers() == 0


def test_workers_never_load_what_draws():
    """CDTools #87: plots belong where the run ends."""
    code = "import sys, dtomo.ptycho.job, dtomo.ptycho.cluster_driver; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_goes_to_the_workers_holds_no_frames(truth):
    """dask #7860, #11562: arrays caught in the graph choked the scheduler."""
    data = open_scan(truth.path)
    settings = PtychoSettings(scan=truth.path, output="out.h5", defocus=0.0, probe="pattern")
    setup = prepare(data, settings)
    assert len(pickle.dumps((data.source, setup.engine))) < 10_000 < data.source.read().nbytes


def test_complex_arrays_stay_complex(truth):
    """PyTorch #158753: imaginary parts of summed gradients were zero, and nobody was told."""
    frames, positions = truth_frames(truth)
    for engine in ("lsqml", "adam", "cg", "rpie", "dm"):
        found = reconstruct(ArraySource(frames, "frames"), positions, engine=engine, epochs=2, defocus=0.0)
        for name in ("object", "probe"):
            array = getattr(found, name)
            assert array.dtype == np.complex64
            assert array.imag.std() > 1e-3 * array.real.std() > 0, (engine, name)


def truth_frames(truth):
    """Of the scan, and positions in pixels."""
    scan = open_ptycho(truth.path)
    return scan.read(), scan.positions_in_pixels()
