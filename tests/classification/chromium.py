"""A real Chromium, driven through its DevTools protocol over two pipes: no package, no port, no network.

Playwright's package (1.65: 168 MB unpacked, mostly Node.js) speaks the same protocol; these lines are what we need.
"""

import base64
import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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


@contextmanager
def browser(profile):
    """Chromium, with a profile of its own; --no-sandbox since CI is root, and what it opens is ours."""
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
