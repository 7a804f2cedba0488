"""The page in a real browser, where there is one."""

import shutil
import time

import pytest

from dtomo.dashboard import link, show_run
from dtomo.dashboard.plugin import Page

SOON = 30.0
DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium, as large as a laptop's screen."""
    if not DRIVER or not BROWSER:
        pytest.skip("needs chromium and chromedriver (Debian: apt-get install chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (pip install selenium)")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1039"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def everything_said(browser):
    """All text of the page, that of bokeh's shadow roots too."""
    return browser.execute_script(
        "const said = []; const walk = node => { for (const child of node.querySelectorAll('*')) {"
        "if (child.shadowRoot) walk(child.shadowRoot);"
        "if (child.tagName === 'DIV' && child.checkVisibility()) said.push(child.innerText); } };"
        "walk(document); return said.join('\\n');"
    )


def wait_for(browser, words):
    """Wait until the page says `words`."""
    end = time.monotonic() + SOON
    while words not in (said := everything_said(browser)):
        assert time.monotonic() < end, f"the page does not say {words!r} but {said!r}"
        time.sleep(0.2)


def drawn(browser):
    """Canvases with something on them."""
    return browser.execute_script(
        "let count = 0; const walk = node => { for (const child of node.querySelectorAll('*')) {"
        "if (child.shadowRoot) walk(child.shadowRoot);"
        "if (child.tagName === 'CANVAS' && child.width > 50 && child.checkVisibility()) count += 1; } };"
        "walk(document); return count;"
    )


def test_the_page_in_a_browser(browser, client, cluster, description, slabs, task):
    address = link(client)
    cluster.scheduler.plugins[Page.name].runs.by_id.clear()
    browser.get(address)
    wait_for(browser, "No run yet")
    with show_run(client, **description) as feed:
        wait_for(browser, "0 of 4")
        client.gather([client.submit(task, feed, slab, pure=False) for slab in slabs])
        wait_for(browser, "4 of 4")
    wait_for(browser, "finished")
    wait_for(browser, "black ")
    assert "<script>alert(1)</script>.h5" in everything_said(browser)
    assert drawn(browser) >= 6
    width, height = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    )
    assert width <= 1400
    assert height <= 960
    for narrow in (1280, 390):
        size = {"width": narrow, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(address)
        wait_for(browser, "finished")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= narrow
    errors = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [message for message in errors if "favicon" not in message]
