"""The page of a run: what it holds, that nothing in it can run, and what a browser makes of it."""

import importlib.util
import json
from html.parser import HTMLParser

import numpy as np
import pytest
import yaml
import zarr

from dtomo.cli import main
from dtomo.cli.report import after_run
from dtomo.cli.view import show
from dtomo.errors import UserError
from dtomo.io.volumes import store_volume
from dtomo.report.page import report_file, write_report
from dtomo.report.page.stacks import levels_of, stack_of_array, stacks_of
from dtomo.report.page.svg import Line, plot
from dtomo.runs.record import run_file, summary_file
from tests.report.browser import open_browser, resize

HOSTILE = "\"'><img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script></script>"


def ball(shape=(40, 48, 56)):
    """A bright ball off the middle, with a gradient along z: no two slices are alike."""
    z, y, x = np.ogrid[: shape[0], : shape[1], : shape[2]]
    inside = (z - 18) ** 2 + (y - 20) ** 2 + (x - 30) ** 2 < 14**2
    return (inside + 0.01 * z + 0.003 * y + 0.002 * x).astype(np.float32)


def recorded(output, *, name="scan.h5", worker="123"):
    """The record of a run beside `output`, as `dtomo recon` leaves it."""
    run_file(output).write_text(
        yaml.safe_dump(
            {
                "settings": {"scan": name, "output": str(output), "algorithm": "cgls", "dataset": name, "rows": None},
                "found": {"center": 23.5},
                "inputs": [{"path": name, "size": 12_000_000, "changed": 1}],
                "versions": {"dtomo": "0.1.0", "numpy": "2.0.0"},
            }
        ),
        encoding="utf-8",
    )
    slabs = [
        {"start": a, "stop": a + 20, "residual": 0.02 + a / 1e4, "convergence": [1.0, 0.2, 0.05 + a / 1e3]}
        for a in (0, 20)
    ]
    told = {
        "center": 23.5, "how": f"found by {name}", "unit": "1/cm", "slab": 20, "seconds": 12.5,
        "workers": 2, "threads": 1,
        "seconds_by_stage": {"reading": 1.0, "computing": 20.0}, "peak_memory": {worker: 2e8, "124": 1e8},
        "planned_memory": 2.5e8, "bytes_read": 12e6, "dead_pixels": 7, "warnings": [],
        "scan_warnings": [f"odd {name}"], "slabs": slabs,
    }  # fmt: skip
    summary_file(output).write_text(json.dumps(told), encoding="utf-8")


@pytest.fixture
def volume(tmp_path):
    path = tmp_path / "a volume.zarr"
    return store_volume(ball(), path, voxel_size_um=2.0, attributes={"unit": "1/cm"})


class Parts(HTMLParser):
    """Tags, attributes and plain text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def test_a_page_holds_what_the_run_left(volume):
    recorded(volume)
    written = write_report(volume)
    assert written == report_file(volume)
    page = written.read_text("utf-8")
    said = " ".join(Parts(page).words)
    for words in (
        "40 × 48 × 56", "Reconstruction by cgls", "column 23.50", "12 s", "Convergence", "Gray values", "200 MB",
        "odd scan.h5", "Residual along z", "dead pixels repaired", "0.1.0", "algorithm", "computing",
    ):  # fmt: skip
        assert words in said, words
    assert 50_000 < len(page) < 4_000_000


def test_a_page_asks_nothing_of_any_server(volume):
    recorded(volume)
    parts = Parts(write_report(volume).read_text("utf-8"))
    for tag, attributes in parts.tags:
        for name in ("src", "href", "srcset", "action"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    policy = next(attributes["content"] for tag, attributes in parts.tags if "content" in attributes and tag == "meta")
    assert policy.startswith("default-src 'none'")


def test_texts_of_files_stay_texts(tmp_path):
    path = store_volume(ball(), tmp_path / "<b>&.zarr", attributes={"unit": HOSTILE})
    recorded(path, name=HOSTILE, worker=HOSTILE)
    told = json.loads(summary_file(path).read_text("utf-8")) | {"unit": HOSTILE, "seconds_by_stage": {HOSTILE: 1.0}}
    summary_file(path).write_text(json.dumps(told), "utf-8")
    page = write_report(path).read_text("utf-8")
    parts = Parts(page)
    assert HOSTILE in " ".join(parts.words)
    assert [tag for tag, _ in parts.tags].count("script") == 2
    assert not [attributes for _, attributes in parts.tags if any(name.startswith("on") for name in attributes)]
    assert all(attributes["src"].startswith("data:image/") for tag, attributes in parts.tags if tag == "img")


@pytest.mark.parametrize(
    "damage",
    [
        {"summary": "{"},
        {"summary": '{"seconds": NaN, "peak_memory": [1], "slabs": [3, {"residual": "x"}], "warnings": 4}'},
        {"run": "settings: [1, 2]\nversions: 3\ninputs: {a: 1}\n"},
        {"run": "!!python/object/apply:os.system ['true']"},
    ],
)
def test_a_damaged_record_is_left_out(volume, damage):
    recorded(volume)
    if "summary" in damage:
        summary_file(volume).write_text(damage["summary"], "utf-8")
    if "run" in damage:
        run_file(volume).write_text(damage["run"], "utf-8")
    assert "Gray values" in write_report(volume).read_text("utf-8")


def test_pictures_come_from_the_coarsest_level_that_is_large_enough(tmp_path):
    path = store_volume(np.ones((8, 500, 520), np.float32), tmp_path / "large.zarr", levels=3)
    (stack,) = stacks_of(path)
    assert "level 1 of" in stack.source
    xy = stack.planes[0]
    assert xy.size == (500, 520)
    assert xy.length == 8
    assert len(xy.pictures) == 4


def test_slices_of_a_file_too_large_to_be_read_whole(tmp_path, monkeypatch):
    data = ball((40, 900, 70))
    path = store_volume(data, tmp_path / "flat.mrc")
    monkeypatch.setattr("dtomo.report.page.stacks.VOXELS", 6 * data[0].size // 4)
    monkeypatch.setattr("dtomo.report.page.stacks.STREAMED", 5 * data[0].nbytes)
    monkeypatch.setattr("dtomo.report.page.stacks._BAND", 7 * 70 * 4)
    (stack,) = stacks_of(path)
    assert stack.source == "the volume itself, 5 of its 40 slices, averaged over 2 × 2"
    assert [len(plane.pictures) for plane in stack.planes] == [5, 65, 35]
    some = data[np.linspace(0, 39, 5).round().astype(int)]
    assert stack.mean == pytest.approx(float(some.mean()), rel=1e-5)


def test_all_levels_are_found(tmp_path):
    path = store_volume(np.ones((8, 500, 520), np.float32), tmp_path / "large.zarr", levels=3)
    assert [level.shape for level in levels_of(path)] == [(8, 500, 520), (4, 250, 260), (2, 125, 130)]
    zarr.save_array(tmp_path / "plain.zarr", np.ones((3, 4, 5), np.float32))
    assert [level.shape for level in levels_of(tmp_path / "plain.zarr")] == [(3, 4, 5)]
    assert len(levels_of(store_volume(ball(), tmp_path / "a.mrc"))) == 1


@pytest.mark.skipif(importlib.util.find_spec("napari") is not None, reason="napari is installed")
def test_view_without_napari_says_what_to_do(volume, capsys):
    assert main(["view", str(volume)]) == 2
    assert "pip install 'dtomo[viewer]'" in capsys.readouterr().err


def test_napari_is_given_all_levels_where_it_is_installed(tmp_path):
    components = pytest.importorskip("napari.components")
    path = store_volume(np.ones((8, 500, 520), np.float32), tmp_path / "large.zarr", levels=3, voxel_size_um=2.0)
    viewer = components.ViewerModel()
    show(viewer, levels_of(path), "large")
    (layer,) = viewer.layers
    assert [level.shape for level in layer.data] == [(8, 500, 520), (4, 250, 260), (2, 125, 130)]
    assert tuple(layer.scale) == (2.0, 2.0, 2.0)
    assert [str(unit) for unit in layer.units] == ["micrometer"] * 3


def test_special_volumes(tmp_path):
    nothing = stack_of_array(np.full((3, 4, 5), np.nan), "nothing")
    assert nothing.limits[1] > nothing.limits[0]
    flat = stack_of_array(np.ones((1, 4, 5)), "one slice")
    assert len(flat.planes) == 1
    path = store_volume(ball() * np.exp(0.5j).astype(np.complex64), tmp_path / "complex.zarr")
    magnitude, phase = stacks_of(path)
    assert magnitude.name == "volume, magnitude"
    assert phase.mean == pytest.approx(0.5, abs=1e-3)


def test_plots_leave_out_what_is_no_number_and_escape():
    drawn = plot([Line("a<b", [0, 1, 2], [1, np.nan, 100.0]), Line("c", [0, 1], [10, 20])], "x & y", "<z>", log=True)
    assert drawn.count("<polyline") == 2
    assert "a&lt;b" in drawn
    assert "x &amp; y" in drawn
    assert "nan" not in drawn
    assert plot([Line("none", [0.0], [np.inf])], "x", "y") == ""


def test_refusals(tmp_path, volume):
    with pytest.raises(UserError, match="no file or folder"):
        write_report(tmp_path / "none.zarr")
    (tmp_path / "text.zarr").write_text("no volume")
    with pytest.raises(UserError, match="not a volume"):
        write_report(tmp_path / "text.zarr")
    with pytest.raises(UserError, match="cannot be written"):
        write_report(volume, tmp_path / "no folder" / "page.html")
    mrc = store_volume(ball(), tmp_path / "a.mrc")
    with pytest.raises(UserError, match="is the output itself"):
        write_report(mrc, mrc)


def test_no_page_costs_a_run_its_end(tmp_path, volume, capsys):
    report_file(volume).mkdir()
    after_run(volume, True, False)
    said = capsys.readouterr()
    assert said.err.startswith(f"warning: the report of {volume} could not be written: ")
    assert len(said.err.splitlines()) == 1
    after_run(tmp_path / "none", False, False)
    assert not capsys.readouterr().err


@pytest.fixture(scope="module")
def browser():
    driver = open_browser()
    yield driver
    driver.quit()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(browser, tmp_path, width):
    path = store_volume(ball(), tmp_path / ("long" * 30 + ".zarr"), voxel_size_um=2.0, attributes={"unit": HOSTILE})
    recorded(path, name=HOSTILE * 3)
    resize(browser, width)
    browser.get(write_report(path).as_uri())
    assert browser.title.startswith("long")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    wide = browser.execute_script(
        "return [...document.querySelectorAll('main *')].filter(e => !e.closest('svg') && "
        "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    figures = browser.execute_script(MOVED)
    assert [figure["axis"] for figure in figures] == ["z", "y", "x"]
    for figure in figures:
        assert figure["loaded"]
        assert figure["before"] != figure["after"]
        assert figure["said"].startswith(f"{figure['axis']} = 0 of ")
    assert browser.execute_script(CLICKED).startswith("x = 4")
    severe = [entry["message"] for entry in browser.get_log("browser")]
    assert severe == []
    asked = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [one["params"]["request"]["url"] for one in asked if one["method"] == "Network.requestWillBeSent"]
    assert not [url for url in sent if not url.startswith(("file:", "data:"))]


MOVED = """
const found = [];
for (const figure of document.querySelectorAll('.plane')) {
  const image = figure.querySelector('img'), slider = figure.querySelector('input');
  const draw = () => { const canvas = document.createElement('canvas'); canvas.width = canvas.height = 16;
    canvas.getContext('2d').drawImage(image, 0, 0, 16, 16); return canvas.toDataURL(); };
  const before = image.src; slider.value = 0; slider.dispatchEvent(new Event('input'));
  const said = figure.querySelector('output').textContent;
  found.push({axis: said.split(' ')[0], before, after: image.src, said, loaded: image.naturalWidth > 0});
}
return found;
"""
"""Moves each slider to its beginning."""

CLICKED = """
const frame = document.querySelector('.frame'), area = frame.getBoundingClientRect();
frame.dispatchEvent(new MouseEvent('click', {clientX: area.left + 0.8 * area.width, clientY: area.top + 5}));
return document.querySelectorAll('.plane output')[2].textContent;
"""
"""Clicks into the picture of the first plane, far to the right; what is then said of the third."""
