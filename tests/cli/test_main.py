"""The command itself: help, usage errors, the speed of its start."""

import time

import pytest

COMMANDS = ("demo", "info", "center", "recon", "convert", "simulate")


def test_help_lists_the_commands_and_is_quick(dtomo):
    dtomo("--help")
    started = time.monotonic()
    done = dtomo("--help")
    assert time.monotonic() - started < 1.0
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
