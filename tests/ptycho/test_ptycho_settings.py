"""Settings of ptychography: names, options and contradictions, and the way through YAML and back."""

import numpy as np
import pytest
import yaml

from dtomo.errors import UserError
from dtomo.io.sources import ArraySource
from dtomo.settings import PtychoSettings


def _settings(**changes):
    return PtychoSettings(**{"scan": "scan.cxi", "output": "out.h5", **changes})


def test_round_trip_through_yaml(tmp_path):
    before = _settings(
        engine="adam", refine="positions,background", options=["beta=0.9", "first-moment=0.5"], exclude_frames="3,5:7"
    )
    assert before.refine == ("positions", "background")
    assert before.options == {"beta": 0.9, "first_moment": 0.5}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"settings": before.plain()}))
    assert PtychoSettings.read(path).plain() == before.plain()
    assert PtychoSettings.read(path, epochs=3).epochs == 3


def test_names_of_probes_are_not_files_and_files_are_absolute():
    assert _settings(probe="pattern").plain()["probe"] == "pattern"
    assert _settings(probe="probe.npy").plain()["probe"].startswith("/")


def test_where_it_runs_does_not_decide_the_result():
    one, other = _settings(workers=1, memory="1GB"), _settings(workers=3, output="elsewhere.h5")
    assert one.that_decide_the_result() == other.that_decide_the_result()
    assert _settings(seed=1).that_decide_the_result() != one.that_decide_the_result()


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"engine": "magic"}, "--engine: must be 'lsqml'"),
        ({"epochs": 0}, "--epochs: must be 1 or more"),
        ({"refine": "probes"}, "--refine: must be names of positions"),
        ({"options": "beta"}, "--option: must be names and values"),
        ({"refine_from": 5}, "--refine-from is of what --refine names"),
        ({"refine": "positions", "refine_from": 9, "epochs": 9}, "--refine-from 9 is after the last of 9 epochs"),
        ({"phase_only": True, "amplitude_limit": 1.0}, "leave out --amplitude-limit"),
        ({"defocus": 3.0, "probe": "aperture", "aperture": 9.0}, "give --probe pattern"),
        ({"defocus": 3.0, "near_field": True}, "leave it out with --near-field"),
        ({"smoothness": 0.0}, "--smoothness: must be greater than 0"),
        ({"probe_power": float("nan")}, "--probe-power: must be a finite number"),
        ({"slices": 2}, "--slice-distance"),
        ({"refine": "distance", "near_field": False}, "--near-field"),
        ({"magnification": 3.0, "near_field": False}, "--near-field"),
        ({"probe": "aperture"}, "--aperture"),
        ({"aperture": 30.0}, "--probe aperture"),
        ({"saturation": float("nan")}, "--saturation"),
        ({"tile": "0"}, "--tile: must be auto, no, or a number"),
        ({"tile": "many"}, "--tile: must be auto, no, or a number"),
        ({"colour": 1}, "unknown setting 'colour'"),
    ],
)
def test_wrong_values_are_one_sentence(changes, part):
    with pytest.raises(UserError) as raised:
        _settings(**changes)
    assert part in str(raised.value)
    assert "\n" not in str(raised.value)


def test_all_that_can_be_known_can_be_said():
    from dtomo.ptycho import regularisers as known
    from dtomo.ptycho.solvers import constraints

    every = constraints(
        _settings(
            total_variation=1.0, smoothness=2.0, amplitude_limit=1.1, support=9.0, fourier_support=7.0, probe_power=1e5
        )
    )
    assert every.penalties == (known.TotalVariation(1.0), known.Smoothness(2.0))
    assert every.projections == (
        known.AmplitudeLimit(1.1), known.ProbeSupport(9.0), known.FourierSupport(7.0), known.ProbePower(1e5)
    )  # fmt: skip
    assert constraints(_settings(phase_only=True)).projections == (known.PhaseOnly(),)
    assert not constraints(_settings())


@pytest.mark.parametrize("name", ["defocus", "support", "saturation"])
@pytest.mark.parametrize("value", ["inf", "nan", float("inf")])
def test_numbers_are_finite_as_text_too(name, value):
    with pytest.raises(UserError, match=f"--{name}: must be (a finite number|greater than 0|0 or more)"):
        _settings(**{name: value})


def test_positions_are_rounded_where_asked(tmp_path):
    """Then the model has no fractions, and refining them is refused."""
    from dtomo.ptycho.setup import Data, prepare

    random = np.random.default_rng(0)
    data = Data(ArraySource(random.poisson(3.0, (9, 16, 16)), "frames"), random.uniform(0, 20, (9, 2)))
    settings = PtychoSettings(scan=tmp_path / "a.cxi", output=tmp_path / "b.h5", defocus=None, probe="pattern")
    assert prepare(data, settings).model.subpixel
    rounded = settings.model_copy(update={"subpixel": False})
    assert not prepare(data, rounded).model.subpixel
