# SPDX-License-Identifier: Apache-2.0
"""Makes page.webp, the moving picture of the page in README: a job folds, a spine is killed, and comes back.

    python docs/film.py docs/page.webp

Needs what `netfold run --topo` needs, Chromium, and Pillow. A frame is what a visitor sees, once a second, without the
charts and with a caption below.
"""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from PIL import Image

WIDTH, HEIGHT = 1280, 760
PAGE: Final = "127.0.0.1:9178"
NETFOLD: Final = Path(sys.executable).with_name("netfold")
JOB: Final = """
import numpy as np, netfold
comm = netfold.init()
while True:
    comm.allreduce(np.ones(1 << 18, np.float32))
"""
SCENES: Final = (
    (6.0, "Eight ranks sum their gradients: both spines fold", ()),
    (7.0, "spine1 is killed: the job folds on over spine2", ("kill", "spine1", "--for", "7s")),
    (9.0, "spine1 is back, and folds again once it has been up for a while", ()),
)
"""Seconds, caption, and the fault that begins the scene."""
CAPTION: Final = """(() => {
  let bar = document.getElementById("caption");
  if (!bar) {
    for (const panel of document.querySelectorAll(".traffic, .switches")) panel.style.display = "none";
    bar = document.body.appendChild(document.createElement("div"));
    bar.id = "caption";
    bar.style = "position: fixed; left: 0; right: 0; bottom: 0; padding: 10px 24px; font: 600 20px sans-serif; " +
      "background: #1b2430; color: white; z-index: 9";
  }
  bar.textContent = %s;
})()"""


class Browser:
    """Headless Chromium with one page, driven over its debugging pipe (the Chrome DevTools Protocol)."""

    def __init__(self, program: str, profile: str) -> None:
        there_in, self._out = os.pipe()
        self._in, there_out = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4
        command = ["sh", "-c", f'exec 3<&{there_in} 4>&{there_out}; exec "$@"', "sh", program, "--headless",
                   "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                   f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}", "--remote-debugging-pipe",
                   "about:blank"]
        self._process = subprocess.Popen(command, pass_fds=(there_in, there_out), stderr=subprocess.DEVNULL)
        os.close(there_in)
        os.close(there_out)
        self._numbers, self._rest = itertools.count(1), b""
        (target,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        self.call("Emulation.setDeviceMetricsOverride", page=True, width=WIDTH, height=HEIGHT, deviceScaleFactor=1,
                  mobile=False)

    def call(self, method: str, *, page: bool = False, **params: Any) -> dict[str, Any]:
        """The result of a method; `page`: of the page rather than the browser."""
        number = next(self._numbers)
        asked = {"id": number, "method": method, "params": params} | ({"sessionId": self._session} if page else {})
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                self._rest += os.read(self._in, 1 << 20) or sys.exit("Chromium has ended").encode()
            line, self._rest = self._rest.split(b"\0", 1)
            said = json.loads(line)
            if said.get("id") == number:
                if "error" in said:
                    sys.exit(f"{method}: {said['error']['message']}")
                result: dict[str, Any] = said["result"]
                return result

    def picture(self) -> Image.Image:
        """A screenshot of the page."""
        data = self.call("Page.captureScreenshot", page=True, format="png")["data"]
        return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def training() -> Iterator[None]:
    """A fabric with a page, and a job on it."""
    command = [str(NETFOLD), "run", "--topo", "leafspine,4,2,8", "--metrics", PAGE, "--grace", "0", "--quiet", "--",
               sys.executable, "-c", JOB]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def film(browser: Browser) -> tuple[list[Image.Image], list[float]]:
    """A picture about each second of all scenes, from when the job folds, and the seconds at which they were taken."""
    browser.call("Page.navigate", page=True, url=f"http://{PAGE}/")
    text = "document.body.innerText"
    while "folded" not in browser.call("Runtime.evaluate", page=True, expression=text)["result"].get("value", ""):
        time.sleep(1)
        browser.call("Page.navigate", page=True, url=f"http://{PAGE}/")
        time.sleep(2)
    time.sleep(8)  # rates need some seconds
    frames, times = [], []
    for seconds, caption, fault in SCENES:
        if fault:
            subprocess.run([NETFOLD, "fault", *fault], check=True)
        browser.call("Runtime.evaluate", page=True, expression=CAPTION % json.dumps(caption))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            times.append(time.monotonic())
            frames.append(browser.picture())
            time.sleep(1 - time.monotonic() % 1)
    return frames, [*times, end]


def main() -> None:
    """Film, and write the picture that the command line names."""
    program = shutil.which("chromium") or shutil.which("google-chrome") or sys.exit("expected chromium on PATH")
    with tempfile.TemporaryDirectory() as profile, training():
        browser = Browser(program, profile)
        try:
            frames, times = film(browser)
        finally:
            browser.close()
    shown = [max(100, round(1000 * (after - before))) for before, after in itertools.pairwise(times)]
    frames[0].save(sys.argv[1], save_all=True, append_images=frames[1:], duration=shown, loop=0, lossless=True,
                   method=6)


if __name__ == "__main__":
    main()
