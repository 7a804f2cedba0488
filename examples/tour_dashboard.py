"""A tour of dashboard and report: real runs of dtomo, and what a browser shows of them.

python examples/tour_dashboard.py [FOLDER]    # writes FOLDER/tour-*.png

Needs Chromium with its driver, and selenium (``pip install selenium``). Two runs go through a cluster of two workers
that stays, so that its pages stay too: one that is well, and one about an axis that is 9 columns off, which is killed.
"""

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

import dtomo
from dtomo.dashboard import link
from dtomo.dashboard.plugin import Page
from dtomo.report.page import report_file

SIZE, CENTER, ITERATIONS = 96, 58.4, 900
"""Width of a slice in voxels, column of the axis, iterations of SIRT."""
DESK, PHONE = (1280, 920), (390, 844)
"""Width and height of a window, in CSS pixels."""
COLORS = 128
"""Of a picture, so that it stays small."""
SOON = 400.0
"""Seconds that anything may take."""


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Headless Chromium; selenium, and nothing else here, knows how to talk to it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def resize(driver: Any, size: tuple[int, int]) -> None:
    """Make the window this large."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def open_page(driver: Any, address: str, size: tuple[int, int]) -> None:
    """Open a page in a window of this size, and give it time to draw itself."""
    resize(driver, size)
    driver.get(address)
    time.sleep(3)


def shoot(driver: Any, target: Path, whole: bool = False) -> Path:
    """Write what the window shows, or the whole page, as PNG of few colors or as JPEG.

    Raises
    ------
    AssertionError
        The page is wider than the window, so that a part of it would be cut.
    """
    wide, high, window = driver.execute_script(
        "const page = document.documentElement; return [page.scrollWidth, page.scrollHeight, window.innerWidth];"
    )
    assert wide <= window, f"{target.name}: the page is {wide} pixels wide, the window {window}"
    if whole:
        resize(driver, (wide, high))
        time.sleep(2)
    picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    if target.suffix == ".png":
        picture = picture.quantize(COLORS, dither=Image.Dither.NONE)
    picture.save(target, optimize=True, quality=80)
    return target


def wait_for(condition: Callable[[], bool], what: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until something has come about.

    Raises
    ------
    TimeoutError
        It does not come about, or the process is gone that it is waited for of.
    """
    end = time.monotonic() + SOON
    while not condition():
        gone = process.poll()
        if time.monotonic() > end or gone is not None:
            raise TimeoutError(f"no {what} within {SOON:.0f} s (exit code {gone})")
        time.sleep(0.2)


@contextlib.contextmanager
def started(words: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command of dtomo that runs beside this process, in a folder; what is left of it is killed in the end."""
    with (folder / "said.txt").open("wb") as said:
        command = [sys.executable, "-m", "dtomo", *words]
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


class Watched:
    """What the page in this process's scheduler knows of the newest run."""

    def __init__(self, scheduler: Any) -> None:
        self._runs = scheduler.plugins[Page.name].runs

    def told(self, runs: int, slabs: int = 0, state: str = "running") -> bool:
        """Whether there are so many runs, and the newest has so many slabs done and is in this state."""
        known = list(self._runs.by_id.values())
        return len(known) == runs and known[-1].slabs_done >= slabs and known[-1].state == state


def shoot_healthy(driver: Any, folder: Path, work: Path, address: str, page: str, watched: Watched) -> list[Path]:
    """A run that is well, at desk and on the phone, and Dask's own pages meanwhile; its report."""
    pictures = []
    command = ["recon", "scan.h5", "volume.zarr", "--cluster", address, "--algorithm", "sirt", "--slab", "6"]
    with started([*command, "--iterations", str(ITERATIONS)], work) as process:
        wait_for(lambda: watched.told(1, slabs=3), "slab done", process)
        open_page(driver, page, DESK)
        pictures.append(shoot(driver, folder / "tour-run.png"))
        open_page(driver, page, PHONE)
        pictures.append(shoot(driver, folder / "tour-phone.png", whole=True))
        for name in ("status", "workers"):
            open_page(driver, urllib.parse.urljoin(page, name), DESK)
            pictures.append(shoot(driver, folder / f"tour-dask-{name}.png"))
        assert watched.told(1), "the run was over before its pictures were taken"
        process.wait(SOON)
    assert process.returncode == 0, (work / "said.txt").read_text("utf-8")
    open_page(driver, page, DESK)
    pictures.append(shoot(driver, folder / "tour-done.png"))
    report = report_file(work / "volume.zarr").as_uri()
    for name, size in (("report", (1280, 830)), ("report-phone", (390, 900))):
        open_page(driver, report, size)
        pictures.append(shoot(driver, folder / f"tour-{name}.jpg"))
    return pictures


def shoot_sick(driver: Any, folder: Path, work: Path, address: str, page: str, watched: Watched) -> list[Path]:
    """A run about an axis that is 9 columns off, after its process was killed."""
    command = ["recon", "scan.h5", "sick.zarr", "--cluster", address, "--algorithm", "sirt", "--slab", "6"]
    with started([*command, "--iterations", str(ITERATIONS), "--center", str(CENTER + 9)], work) as process:
        wait_for(lambda: watched.told(2, slabs=4), "slab done", process)
    deadline = time.monotonic() + SOON
    while not watched.told(2, state="lost") and time.monotonic() < deadline:
        time.sleep(0.2)
    open_page(driver, page, DESK)
    return [shoot(driver, folder / "tour-sick.png")]


def main(folder: Path) -> list[Path]:
    """Run dtomo twice on a simulated scan and take pictures of its pages; about two minutes."""
    from distributed import Client, LocalCluster

    folder = folder.resolve()
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dtomo.simulate.simulate_scan(work / "scan.h5", size=SIZE, rows=48, center=CENTER)
        ports = {"scheduler_port": 0, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
        cluster = stack.enter_context(LocalCluster(n_workers=2, threads_per_worker=1, memory_limit="1GB", **ports))
        page = link(stack.enter_context(Client(cluster)))
        driver = stack.enter_context(browser())
        there = driver, folder, work, cluster.scheduler_address, page, Watched(cluster.scheduler)
        return [*shoot_healthy(*there), *shoot_sick(*there)]


if __name__ == "__main__":
    for path in main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")):
        print(path)
