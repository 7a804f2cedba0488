"""Dask's report of a run: where it may be written, and that it is."""

import os
from pathlib import Path

import pytest

from dtomo.distributed.clusters import Resources, connect
from dtomo.distributed.performance import Report
from dtomo.errors import DtomoError, UserError


@pytest.fixture(scope="module", autouse=True)
def client():
    """A cluster whose work is reported."""
    with connect(Resources(1, 1, 10**9, dashboard=":0")) as found:
        yield found


def test_a_report_shows_the_work(client, tmp_path):
    path = tmp_path / "a::b #1.html"  # not to be read as an address
    report = Report(path)
    with report.recording():
        assert client.submit(sum, (1, 2), key="dtomo-test-task").result() == 3
    assert not path.exists()
    report.save()
    page = path.read_text("utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "dtomo-test-task" in page
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_nothing_is_kept_of_work_that_fails(tmp_path):
    report = Report(tmp_path / "report.html")
    with pytest.raises(ZeroDivisionError), report.recording():
        raise ZeroDivisionError
    report.save()
    assert not list(tmp_path.iterdir())


def test_no_report_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = Report(None)
    with report.recording():
        pass
    report.save()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("scan.h5", "is an HTML file such as report.html"),
        ("", "is an HTML file"),
        ("nowhere/report.html", "does not exist"),
        ("folder.html", "is a folder"),
        ("there.html", "exists; name another file"),
    ],
)
def test_places_where_no_report_can_be(tmp_path, name, words):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "there.html").write_text("mine")
    with pytest.raises(UserError, match=words):
        Report(tmp_path / name)
    assert (tmp_path / "there.html").read_text() == "mine"


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs a folder where no file can be made")
def test_a_folder_that_takes_no_file_is_refused():
    with pytest.raises(UserError, match="cannot be written"):
        Report(Path("/proc/report.html"))


def test_overwrite_replaces_a_report(client, tmp_path):
    path = tmp_path / "there.html"
    path.write_text("old")
    report = Report(path, overwrite=True)
    with report.recording():
        client.submit(abs, -1).result()
    report.save()
    assert "html" in path.read_text("utf-8")[:100].lower()


def test_a_folder_that_is_gone_is_told_at_the_end(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    report = Report(folder / "report.html")
    with report.recording():
        folder.rmdir()
    with pytest.raises(DtomoError, match="cannot be written: No such file"):
        report.save()
