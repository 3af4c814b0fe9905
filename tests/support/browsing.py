"""A headless Chromium, driven through its pipe."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
PATIENCE = 30.0
"""Seconds for anything."""


class Page:
    """One tab. ``complaints`` are exceptions, errors on the console and what the content security policy forbade."""

    def __init__(self, directory: Path) -> None:
        assert CHROMIUM is not None
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4.
        shell = ("bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash")
        self._browser = subprocess.Popen(
            [*shell, CHROMIUM, *OPTIONS, f"--user-data-dir={directory}", "about:blank"],
            pass_fds=(commands, answers),
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer, self._number, self._session = b"", 0, ""
        self._loaded = 0
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._hear(answer)

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            self._buffer += os.read(self._in, 1 << 16)
        whole, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(whole)

    def _hear(self, event: dict[str, Any]) -> None:
        said = event.get("params", {})
        self._loaded += event.get("method") == "Page.loadEventFired"
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"]))
        if event.get("method") == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(said["args"]))
        # A refused or failed request is no fault of the page.
        if event.get("method") == "Log.entryAdded" and said["entry"]["source"] != "network":
            self.complaints.append(said["entry"]["text"])

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, condition: str) -> Any:
        """Wait until it holds on the page; its value."""
        return self.evaluate(
            f"""new Promise((resolve, reject) => {{
                const end = Date.now() + {1000 * (PATIENCE - 5)};
                const look = () => {{
                    const found = {condition};
                    if (found) resolve(found);
                    else if (Date.now() > end) reject({json.dumps(condition)} + " never came true");
                    else setTimeout(look, 20);
                }};
                look();
            }})"""
        )

    def go(self, url: str) -> None:
        loaded = self._loaded
        self.call("Page.navigate", url=url)
        while self._loaded == loaded:
            self._hear(self._read())

    def size(self, width: int, height: int) -> None:
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def prefer(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def type(self, selector: str, text: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """With the mouse, where the element really is."""
        found = json.dumps(selector)
        self.evaluate(f"document.querySelector({found}).scrollIntoView({{block: 'center'}})")
        box = self.evaluate(f"document.querySelector({found}).getBoundingClientRect().toJSON()")
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def text(self, selector: str) -> str:
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def picture(self, path: Path, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)
        self._browser.terminate()
        self._browser.wait(PATIENCE)


@contextmanager
def page(directory: Path) -> Iterator[Page]:
    opened = Page(directory)
    try:
        yield opened
    finally:
        opened.close()
