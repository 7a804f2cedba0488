"""The command itself: help, usage errors, the speed of its start."""

import os
import resource
import signal
import time

import psutil
import pytest

COMMANDS = ("demo", "info", "center", "recon", "ptycho", "ptychotomo", "subtomo", "fit", "convert", "simulate")


def test_help_lists_the_commands_and_is_quick(dtomo):
    took = []
    for _ in range(3):  # the first one may find nothing compiled
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = dtomo("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < 1.0  # of a core, whatever else it does
    assert done.returncode == 0
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", [*COMMANDS, "simulate scan"])
def test_each_command_explains_itself(dtomo, name):
    done = dtomo(*name.split(), "--help")
    assert done.returncode == 0
    assert "Usage: dtomo " + name in done.stdout


def test_version(dtomo):
    from dtomo import __version__

    assert dtomo("--version").stdout.strip() == f"dtomo {__version__}"


@pytest.mark.parametrize("words", [["frobnicate"], ["recon", "--frobnicate"], ["recon", "--workers", "two", "a", "b"]])
def test_usage_errors_are_code_2_without_a_traceback(dtomo, words):
    done = dtomo(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback_of_a_user_error(dtomo):
    assert "Traceback" not in dtomo("info", "none.h5").stderr
    done = dtomo("recon", "none.h5", "out.zarr", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_a_wrong_number_of_threads_is_one_sentence(dtomo, scan, monkeypatch):
    monkeypatch.setenv("DTOMO_THREADS", "abc")
    done = dtomo("recon", scan, "out.zarr")
    assert done.returncode == 2
    assert done.stderr == "dtomo: DTOMO_THREADS is a number of threads, such as 4, not 'abc'\n"


def test_ctrl_c_while_workers_are_prepared(start, scan, tmp_path):
    """The signal goes to all processes as soon as there is a second one."""
    process = start("recon", scan, "out.zarr", "--center", 38.5)
    while not psutil.Process(process.pid).children():
        assert process.poll() is None
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize("words", [["--size", 10**8], ["--angles", 10**15], ["--size", 10**12]])
def test_more_memory_than_there_is(dtomo, tmp_path, words):
    done = dtomo("simulate", "scan", "huge.h5", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("dtomo: ")
    assert "memory" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
