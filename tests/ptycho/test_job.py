"""Runs of ptychography from disk to disk: plan, result and records, resumption with the same bits, refusals."""

import json

import numpy as np
import pytest
import yaml

from dtomo.errors import StoppedError, UserError
from dtomo.io.output import progress_folder
from dtomo.io.ptycho.results import read_results
from dtomo.ptycho import job
from dtomo.settings import PtychoSettings
from dtomo.simulate.ptycho import simulate_ptycho

RATES = {"rates": {"object": 0.03, "probe": 0.03}}


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    return simulate_ptycho(tmp_path_factory.mktemp("scan") / "scan.cxi", size=32, positions=50, modes=1, seed=1)


def _settings(truth, output, **changes):
    given = {
        "engine": "adam",
        "epochs": 4,
        "workers": 1,
        "options": RATES,
        "checkpoint_every": "1it",
        "defocus": 0.0,
        **changes,
    }
    return PtychoSettings(scan=truth.path, output=output, **given)


def test_a_plan_touches_nothing(truth, tmp_path, capsys):
    run = job.run(_settings(truth, tmp_path / "out.h5"), plan_only=True)
    assert run.result is None
    assert "memory per worker" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["out.h5", "out.zarr"])
def test_the_output_is_whole_and_says_how_it_was_made(truth, tmp_path, name, capsys):
    output = tmp_path / name
    run = job.run(_settings(truth, output))
    said = capsys.readouterr().err
    assert "4 of 4 epochs done, loss" in said
    assert "settings in" in said
    result = read_results(output)
    np.testing.assert_array_equal(result.object, run.result.object)
    assert not progress_folder(output).exists()
    assert result.pixel_size == pytest.approx((truth.pixel_size, truth.pixel_size))
    summary = json.loads((tmp_path / f"{name}.summary.json").read_text())
    assert summary["losses"] == pytest.approx(list(result.history))
    record = yaml.safe_load((tmp_path / f"{name}.run.yaml").read_text())
    assert record["settings"]["engine"] == "adam"
    again = PtychoSettings.read(tmp_path / f"{name}.run.yaml")
    assert again == _settings(truth, output).model_copy(update={"output": output.resolve()})


def test_positions_in_the_file_are_those_of_the_scan(truth, tmp_path):
    run = job.run(_settings(truth, tmp_path / "out.h5", epochs=1), quiet=True)
    found = run.result.positions - truth.stated_positions
    np.testing.assert_allclose(found - found.mean(0), 0, atol=1e-6)


@pytest.mark.parametrize("name", ["out.h5", "out.zarr"])
def test_an_interrupted_run_goes_on_with_the_same_bits(truth, tmp_path, name, monkeypatch):
    halves = name == "out.h5"
    straight = job.run(_settings(truth, tmp_path / "straight.h5", frc=halves), quiet=True).result
    output = tmp_path / name
    settings = _settings(truth, output, frc=halves)
    for part, epoch in (("whole", 2), ("second half", 3))[: 1 + halves]:
        with monkeypatch.context() as patch:
            _interrupt_at(patch, part, epoch)
            with pytest.raises(StoppedError, match="--resume") as raised:
                job.run(settings, quiet=True, resume=part != "whole")
            assert raised.value.exit_code == 130
        assert progress_folder(output).is_dir()
    with pytest.raises(UserError, match="--resume"):
        job.run(settings, quiet=True)
    with pytest.raises(UserError, match="other settings"):
        job.run(_settings(truth, output, frc=halves, seed=9), quiet=True, resume=True)
    resumed = job.run(settings, quiet=True, resume=True).result
    np.testing.assert_array_equal(resumed.object, straight.object)
    np.testing.assert_array_equal(resumed.probe, straight.probe)
    if halves:
        np.testing.assert_array_equal(resumed.frc.correlation, straight.frc.correlation)
    np.testing.assert_array_equal(read_results(output).object, straight.object)


def _interrupt_at(patch, part, epoch):
    """Ctrl-C after an epoch of a part."""
    real = job.solve

    def solve(*arguments, on_epoch, **options):
        def told(name, report):
            if (name, report.epoch) == (part, epoch):
                raise KeyboardInterrupt
            return on_epoch(name, report)

        return real(*arguments, on_epoch=told, **options)

    patch.setattr(job, "solve", solve)


def test_refined_parameters_come_out(truth, tmp_path):
    settings = _settings(truth, tmp_path / "out.h5", refine="positions,background,scale", modes=2, opr=1)
    run = job.run(settings, quiet=True)
    assert run.result.background.shape == (32, 32)
    assert run.result.scale.shape == (50,)
    assert run.result.variable_probe.shape == (1, 2, 32, 32)
    assert run.summary["positions_moved"]["most"] > 0


def test_two_halves_are_compared(truth, tmp_path, capsys):
    run = job.run(_settings(truth, tmp_path / "out.h5", frc=True))
    assert run.result.frc is not None
    assert "frc" in run.summary
    assert "half-scans" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"options": {"speed": 1}}, "no speed"),
        ({"tile": 64}, "--tile takes"),
        ({"memory": "100MB"}, "--memory"),
        ({"crop": 1000}, "crop"),
        ({"exclude_frames": "0:50"}, "frame"),
        ({"probe": "nowhere.npy", "defocus": None}, "nowhere.npy"),
        ({"magnification": 3.0}, "magnification is of a near field"),
        ({"energy": 8800.0}, "is it 8800 eV"),
        ({"defocus": 1e30}, "--defocus is in µm"),
        ({"crop": 3}, "are too few"),
        ({"center": (1, 2)}, "are too few"),
        ({"exclude_frames": "1:50"}, "several frames that overlap"),
        ({"pixel_size": 75000.0}, "farther apart than the 32 × 32 pixels of a frame"),
    ],
)
def test_bad_requests_are_refused_and_nothing_is_touched(truth, tmp_path, changes, part):
    with pytest.raises(UserError, match=part) as raised:
        job.run(_settings(truth, tmp_path / "out.h5", **changes), quiet=True)
    assert raised.value.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_other_names_of_outputs_are_refused(truth, tmp_path):
    with pytest.raises(UserError, match=r"\.h5"):
        job.run(_settings(truth, tmp_path / "out.tif"), quiet=True)


def test_a_result_is_replaced_only_on_request(truth, tmp_path):
    output = tmp_path / "out.h5"
    job.run(_settings(truth, output, epochs=1), quiet=True)
    before = output.read_bytes()
    with pytest.raises(UserError, match="--overwrite"):
        job.run(_settings(truth, output, epochs=2), quiet=True)
    assert output.read_bytes() == before
    job.run(_settings(truth, output, epochs=2), quiet=True, overwrite=True)
    assert len(read_results(output).history) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "lsqml", "options": {}, "slices": 2, "slice_distance": 5.0},
        {"engine": "lsqml", "options": {}, "exponential": True},
    ],
)
def test_what_a_solver_does_not_take_is_refused_before_anything_is_written(truth, tmp_path, changes):
    with pytest.raises(UserError):
        job.run(_settings(truth, tmp_path / "out.h5", **changes))
    assert list(tmp_path.iterdir()) == []


def test_positions_are_not_refined_where_they_are_rounded(truth, tmp_path):
    with pytest.raises(UserError, match="leave out --whole-pixels"):
        _settings(truth, tmp_path / "out.h5", refine="positions", subpixel=False)
