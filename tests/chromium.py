"""A real Chromium, driven through its DevTools protocol over two pipes: no package, no port, no network.

Playwright's package (1.65: 168 MB unpacked, mostly Node.js) speaks the same protocol; these lines are what we need.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SKIPPED = PROGRAM is None and os.environ.get("PRPRODUCT_BROWSER") != "1"
REASON = "no chromium is installed; PRPRODUCT_BROWSER=1 makes its absence an error"
FIGURES = """[...document.querySelectorAll(".panels svg")].map(svg => {
  const box = svg.getBoundingClientRect(); return [box.width, box.height, box.left, box.right] })"""
TABLES = """[...document.querySelectorAll(".scroll")].map(box => [box.getBoundingClientRect().right, box.scrollWidth,
  box.clientWidth, getComputedStyle(box).overflowX])"""
BACKGROUND = """(element => getComputedStyle(element).backgroundColor)(document.body)"""


class Browser:
    """Commands to one tab, and what it reported meanwhile."""

    def __init__(self, write, read):
        self._write, self._read, self._number, self._rest = write, read, 0, b""
        self.events, self.session = [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, url, width, height=900, scheme="light"):
        """Load a page in a window of a size; phones have two pixels for one of the page."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + 60
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() < deadline, "the page does not load"
            self.events.append(self._next())

    def evaluate(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def of(self, *methods):
        return [event["params"] for event in self.events if event.get("method") in methods]

    def screenshot(self):
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def pdf(self):
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def _next(self):
        while b"\0" not in self._rest:
            more = os.read(self._read, 1 << 20)
            assert more, "Chromium ended"
            self._rest += more
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)


def check_page(chromium, page, width, scheme):
    """It fits its window, shows all its figures, loads nothing, complains of nothing, and is dark where asked."""
    chromium.open(page, width, scheme=scheme)
    root = "document.documentElement"
    assert chromium.evaluate(f"{root}.scrollWidth") <= chromium.evaluate(f"{root}.clientWidth"), "it scrolls sideways"
    assert chromium.evaluate("innerWidth") == width
    figures = chromium.evaluate(FIGURES)
    assert all(w > 150 and h > 50 and left >= 0 and right <= width for w, h, left, right in figures), figures
    tables = chromium.evaluate(TABLES)
    assert all(right <= width for right, *_ in tables)
    assert all(overflow == "auto" for *_, overflow in tables)
    asked = [event["request"]["url"] for event in chromium.of("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:")] == [page]
    complaints = chromium.of("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    assert complaints == []
    dark = [int(value) < 60 for value in re.findall(r"\d+", chromium.evaluate(BACKGROUND))[:3]]
    assert all(dark) if scheme == "dark" else not any(dark)
    assert chromium.screenshot().startswith(b"\x89PNG")


def check_paper(chromium, page):
    """Printed, it is light, and no table is cut."""
    chromium.open(page, 1280, scheme="dark")
    chromium.call("Emulation.setEmulatedMedia", media="print")
    chromium.call("Emulation.setDeviceMetricsOverride", width=700, height=1000, deviceScaleFactor=1, mobile=False)
    tables = chromium.evaluate(TABLES)
    assert tables
    assert all(wanted <= there + 1 for _, wanted, there, _ in tables), "a table is wider than a sheet of A4"
    assert chromium.evaluate('[...document.querySelectorAll("details table")].every(t => t.checkVisibility())')
    assert chromium.evaluate(BACKGROUND) == "rgb(255, 255, 255)"
    pdf = chromium.pdf()
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 2
    chromium.call("Emulation.setEmulatedMedia", media="")


@contextmanager
def browser(profile):
    """Chromium, with a profile of its own; --no-sandbox since CI is root, and what it opens is ours."""
    assert PROGRAM, "PRPRODUCT_BROWSER=1, but no chromium is installed: apt-get install chromium"
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    def places():  # where Chromium looks for its commands and puts its answers
        os.dup2(to_read, 3)
        os.dup2(from_write, 4)

    # Above 4, so that neither dup2 overwrites what the other still needs.
    to_read, from_write = (os.dup2(end, 60 + place) for place, end in enumerate((to_read, from_write)))
    started = subprocess.Popen(
        [
            PROGRAM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ],
        preexec_fn=places,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in (to_read, from_write):
        os.close(end)
    try:
        yield Browser(to_write, from_read)
    finally:
        started.terminate()
        started.wait(30)
        os.close(to_write)
        os.close(from_read)
