# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through the pipe of its DevTools protocol: no server, no further package."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDE = (1280, 800)
PAINTED = "new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))"
PATIENCE_S = 120  # a slow machine takes long to start a browser; nothing is measured by this

# Descriptors 3 and 4 are what the browser reads from and writes to; the pipes first move out of their way.
_TRAMPOLINE = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reads, 3), os.dup2(writes, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A page on a screen of its own. `console` holds what it complained about, `requests` what it loaded."""

    def __init__(self, path: str, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="page-test-", ignore_cleanup_errors=True)
        reads, self._writes = os.pipe()
        self._reads, writes = os.pipe()
        self._poll = (
            select.poll()
        )  # select() takes no descriptor above 1023, and a worker may have as many open
        self._poll.register(self._reads, select.POLLIN)
        command = [path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
                   "--disable-component-update", "--remote-debugging-pipe",
                   f"--user-data-dir={self._profile.name}", "about:blank"]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TRAMPOLINE, str(reads), str(writes), *command],
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._left = b""
        self._number = 0
        self._session: str | None = None
        self.console: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")
        self.resize(width, height)
        self.emulate(dark)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        with contextlib.suppress(OSError, RuntimeError):
            self._call("Browser.close")
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._reads)
        os.close(self._writes)
        self._profile.cleanup()

    def emulate(self, dark: bool, paper: bool = False) -> None:
        """What the reader prefers, and whether the page is on a screen or is printed."""
        wanted = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", media="print" if paper else "screen", features=wanted)

    def resize(self, width: int, height: int, mobile: bool = False) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                   mobile=mobile)  # fmt: skip
        self._call("Emulation.setTouchEmulationEnabled", enabled=mobile)

    def before_each_page(self, script: str) -> str:
        """Run this in every page before its own scripts; gives what `never_mind` takes."""
        return str(self._call("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"])

    def never_mind(self, identifier: str) -> None:
        self._call("Page.removeScriptToEvaluateOnNewDocument", identifier=identifier)

    def open(self, page: Path, place: str = "") -> None:
        """Load a file and wait until it says that it is ready. place: what follows, such as `#lines`."""
        self._call("Page.navigate", url="about:blank")  # a change of the place alone would load nothing
        self._call("Page.navigate", url=f"{page.resolve().as_uri()}{place}")
        deadline = time.monotonic() + PATIENCE_S
        while self.run("document.documentElement?.dataset.ready ?? ''") == "":
            if time.monotonic() > deadline:
                raise RuntimeError(f"{page} did not become ready: {self.console}")
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of an expression, of what it promises if it is a promise."""
        out = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in out:
            raise RuntimeError(out["exceptionDetails"]["exception"].get("description", "an exception"))
        return out["result"].get("value")

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drag(self, start: tuple[float, float], end: tuple[float, float], shift: bool = False) -> None:
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        steps = (("mousePressed", start), ("mouseMoved", middle), ("mouseMoved", end), ("mouseReleased", end))
        for kind, (x, y) in steps:
            self._call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left",
                buttons=1,
                clickCount=1,
                modifiers=8 if shift else 0,
            )

    def wheel(self, x: float, y: float, delta: float) -> None:
        self._call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta)

    def touch(self, kind: str, *points: tuple[float, float]) -> None:
        """kind: touchStart, touchMove or touchEnd."""
        self._call("Input.dispatchTouchEvent", type=kind,
                   touchPoints=[{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)])  # fmt: skip

    def key(self, key: str, text: str = "") -> None:
        """text: what the key types, where that is not its name."""
        typed = {"text": text or key} if text or len(key) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **typed)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        data = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **(
            {"clip": self._whole()} if whole else {}))  # fmt: skip
        path.write_bytes(base64.b64decode(data["data"]))

    def _whole(self) -> dict[str, float]:
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        method, said = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            detail = said["exceptionDetails"]
            self.console.append(detail.get("exception", {}).get("description", detail["text"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.console.append(str([a.get("value", a.get("description")) for a in said["args"]]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.console.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            data = os.read(self._reads, 1 << 20) if self._poll.poll(1000 * PATIENCE_S) else b""
            if not data:
                raise RuntimeError("the browser does not answer")
            self._left += data
        message, _, self._left = self._left.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


def fresh(browser: Browser, page: Path, size: tuple[int, int] = WIDE, mobile: bool = False) -> None:
    """Open a report page as a reader finds it."""
    browser.resize(*size, mobile=mobile)
    browser.open(page)
    assert browser.run("document.documentElement.dataset.ready") == "yes"
