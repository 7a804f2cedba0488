"""Joint ptycho-tomography on device arrays against the CPU: a few epochs of each solver, wherever slabs stay."""

import contextlib
import dataclasses

import numpy as np
import pytest
from distributed import Client, LocalCluster

from dtomo.device import to_device
from dtomo.distributed.clusters import Resources
from dtomo.io import open_volume
from dtomo.operators.sections import SectionsProjector
from dtomo.ptycho.frame_store import FrameStore
from dtomo.ptycho.model import NearField, PtychoModel
from dtomo.ptychotomo import job
from dtomo.ptychotomo import problem as problem_module
from dtomo.ptychotomo import slab as slabs
from dtomo.ptychotomo.constraints import VolumeConstraints
from dtomo.ptychotomo.driver import JointProblem, LocalJointRunner, run
from dtomo.ptychotomo.engines.adam import JointAdam
from dtomo.ptychotomo.engines.admm import JointADMM
from dtomo.ptychotomo.engines.conjugate import JointConjugateGradient
from dtomo.ptychotomo.model import JointModel
from dtomo.ptychotomo.slab_store import SlabStore
from dtomo.settings import JointSettings
from dtomo.simulate.ptychotomo import simulate_ptychotomo
from tests.ptychotomo.scenes import scene

pytestmark = pytest.mark.usefixtures("few_threads")

WIDTH, FRAME, HEIGHT, REACH = 6, 4, 5, 1
BOUND = VolumeConstraints(support=2.6, signs=True)
EDGES = dataclasses.replace(BOUND, total_variation=0.5)
EVERYTHING = ("shifts", "ramps", "scale", "background")
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("cg", "admm")]
RUNS = [("adam", HEIGHT), ("cg", None), ("admm", HEIGHT)]
MORE = [pytest.param(*one, marks=pytest.mark.slow) for one in (("adam", None), ("cg", HEIGHT), ("admm", None))]


@pytest.fixture(scope="module")
def given():
    return scene(rows=15, width=WIDTH, frame=FRAME, angles=3, step=2, extra=EVERYTHING, counts=300.0)


def start(place):
    """Not nothing, so that gradients are those of all parameters."""
    rows = np.random.default_rng(place.start).uniform(0, 0.02, (place.height, WIDTH, WIDTH))
    return (rows * (-1 + 0.1j)).astype(np.complex64)


def in_slices(given):
    """The same scan, through three slices."""
    field = NearField((FRAME, FRAME), (1.0, 1.2), 0.1, 1.0)
    projector = SectionsProjector(given.model.geometry, 3, WIDTH / 3)
    frames = PtychoModel((FRAME, FRAME), between=(field, field))
    return JointModel(frames, given.model.geometry, given.model.rows, projector)


def engine_of(kind, model, layout, constraints):
    if kind == "adam":
        refine, searched = ("volume", "probe", *EVERYTHING), {"subsets": 1, "search_trials": 1, "search_epochs": 1}
        options = {"subsets": 2} if layout.slabs > 1 else searched
        return JointAdam(model=model, refine=refine, constraints=constraints, reach=REACH, **options)
    if kind == "cg":
        return JointConjugateGradient(model=model, constraints=constraints)
    return JointADMM(model=model, layout=layout, constraints=constraints, refine=("volume", "probe"))


def problem_of(given, kind, constraints=BOUND, slices=False, height=HEIGHT, **options):
    model, layout = in_slices(given) if slices else given.model, given.layout(height, REACH)
    return JointProblem(engine_of(kind, model, layout, constraints), given.source, layout, start, **options)


def close(found, expected, most=2e-4):
    return np.abs(found - expected).max() <= most * np.abs(expected).max()


def assert_alike(found, expected):
    assert found[0].history[:, 0] == pytest.approx(expected[0].history[:, 0], rel=1e-5)
    assert (found[0].history[:, 1] == expected[0].history[:, 1]).all()
    assert found[0].parameters.keys() == expected[0].parameters.keys()
    for name, value in expected[0].parameters.items():
        assert isinstance(found[0].parameters[name], np.ndarray), name
        assert found[0].parameters[name].dtype == value.dtype, name
        assert close(found[0].parameters[name], value), name
    volume, wanted = np.concatenate(found[1]), np.concatenate(expected[1])
    assert volume.dtype == np.complex64
    assert close(volume, wanted)


@pytest.mark.parametrize(("kind", "height"), [*RUNS, *MORE])
def test_a_run(cupy, given, kind, height):
    constraints, epochs = EDGES if height else BOUND, 1 if kind == "adam" and height else 2
    expected = run(problem_of(given, kind, constraints, height=height), given.parameters, epochs)
    there = problem_of(given, kind, constraints, height=height, device_memory=2**30)
    assert_alike(run(there, given.parameters, epochs), expected)
    first = np.concatenate([start(place) for place in there.layout.places])
    assert not close(np.concatenate(expected[1]), first)


@pytest.mark.parametrize("kind", ["adam", "cg"])
def test_slices(cupy, given, kind):
    expected = run(problem_of(given, kind, slices=True, height=7), given.parameters, 1)
    there = problem_of(given, kind, slices=True, height=7, device_memory=2**30)
    assert_alike(run(there, given.parameters, 1), expected)


def bits(found):
    parameters = [value.tobytes() for value in found[0].parameters.values()]
    return [found[0].history.tobytes(), *parameters, *(part.tobytes() for part in found[1])]


@pytest.mark.parametrize("kind", ["adam", *SLOW])
def test_slabs_that_do_not_fit_the_device_come_for_as_long_as_they_are_needed(cupy, given, kind, monkeypatch):
    expected = bits(run(problem_of(given, kind, EDGES, device_memory=2**30), given.parameters, 1))
    one = sum(value.nbytes for value in whole(problem_of(given, kind, EDGES)).values())
    options = {"device_memory": 2**30, "device_slabs": one, "slab_memory": one + one // 4, "frame_memory": 0}
    problem = problem_of(given, kind, EDGES, **options)
    seen = []
    monkeypatch.setattr(LocalJointRunner, "close", lambda runner: (seen.append(runner._slabs), runner._slabs.clear()))
    monkeypatch.setattr(SlabStore, "clear", lambda store: seen.append((store.stay_on_device, store.in_files)))
    assert bits(run(problem, given.parameters, 1)) == expected
    assert seen[1] == ({0}, {2})


def whole(problem):
    """Arrays of the first slab."""
    return problem.engine.begin_slab(problem.layout.places[0], start(problem.layout.places[0]))


def test_what_is_resumed(cupy, given, tmp_path):
    problem = problem_of(given, "cg", EDGES, height=7, device_memory=2**30)
    expected = bits(run(problem, given.parameters, 2))
    run(problem, given.parameters, 1, folder=tmp_path, every=1)
    for stay in (None, 0):
        again = dataclasses.replace(problem, device_slabs=stay)
        assert bits(run(again, given.parameters, 2, folder=tmp_path, every=9)) == expected


def test_what_leaves_a_slab_is_on_the_host(cupy, given):
    """And what stays is on the device."""
    problem = problem_of(given, "adam", EDGES, device_memory=2**30)
    layout, engine, angles = problem.layout, problem.engine, np.arange(3)
    common = problem.common_there(engine.begin_common(given.parameters))
    assert isinstance(common["parameters"]["probe"], cupy.ndarray)
    assert isinstance(common["parameters"]["shifts"], np.ndarray)
    common["phase"] = "gradient"  # no search for shifts
    locals_ = [problem.begin_slab(place) for place in layout.places]
    for place, local in zip(layout.places, locals_):
        assert all(isinstance(value, cupy.ndarray) for value in local.values())
        engine.prepare(place, local, common)
    shown = [slabs.borders(engine, layout, *pair, common, angles) for pair in zip(layout.places, locals_)]
    pieces = [piece for one in shown for piece in dataclasses.asdict(one).values() if piece is not None]
    assert len(pieces) == 8
    assert all(isinstance(piece, np.ndarray) for piece in pieces)
    store = problem.store(None)
    met = slabs.meet(engine, layout, layout.places[1], locals_[1], common, angles, store, shown[0].last, shown[2].first)
    assert isinstance(store, FrameStore)
    assert isinstance(store._kept[3].intensities, cupy.ndarray)
    assert isinstance(met.above, np.ndarray)
    assert np.abs(met.below).max() > 0
    assert all(isinstance(value, np.ndarray) for value in met.sums["gradients"].values())
    assert met.sums["gradients"].keys() == {"probe", *EVERYTHING}


@pytest.fixture
def client():
    """A worker in this process, where the stand-in is."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.parametrize("kind", ["adam", "admm"])
def test_workers_have_the_bits_of_one_process(cupy, client, given, kind):
    alone = problem_of(given, kind, EDGES, device_memory=2**30)
    one = sum(value.nbytes for value in whole(alone).values())
    there = dataclasses.replace(alone, device_slabs=one, slab_memory=one + one // 4)
    assert bits(run(there, given.parameters, 1, client=client)) == bits(run(alone, given.parameters, 1))


def test_from_disk_to_disk(cupy, client, tmp_path, monkeypatch):
    simulate_ptychotomo(tmp_path / "scan.h5", 12, angles=2, frame=8, step=2)
    there = Resources(1, 1, 2**34, devices=("0",), kind="cuda", device_share=2**31)
    outputs, moved = [], []
    for resources in (Resources(1, 1, 2**32), there):
        outputs.append(tmp_path / f"{resources.kind}.zarr")
        settings = JointSettings(scan=tmp_path / "scan.h5", output=outputs[-1], epochs=1, subsets=2, halves=False)
        monkeypatch.setattr(job, "resources_of", lambda *_, found=resources: found)
        monkeypatch.setattr(job.clusters, "connect", lambda *_, **__: contextlib.nullcontext(client))
        moved.clear()
        monkeypatch.setattr(problem_module.device, "to_device", lambda a: (moved.append(a), to_device(a))[1])
        found = job.run(settings, quiet=True)
        assert bool(moved) == bool(found.plan.device_parts) == (resources is there)
    for name in ("delta", "beta"):
        cpu, gpu = (np.asarray(open_volume(out / f"{name}.zarr").array) for out in outputs)
        assert np.abs(cpu).max() > 0
        assert close(gpu, cpu)
