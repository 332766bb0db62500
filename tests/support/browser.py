"""Headless Chromium, driven by its protocol: one tab that is looked at, clicked and typed into."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.support.programs import running, tool
from tests.support.service import until

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PATIENCE_S = 30
PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
DESKTOP = {"width": 1280, "height": 860, "deviceScaleFactor": 1, "mobile": False}
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39}


@dataclass
class Transfer:
    """One request of the tab. `size` is what came over the network, compressed as it was."""

    method: str
    url: str
    body: str = ""
    status: int = 0
    size: int = 0
    headers: dict[str, str] = field(default_factory=dict)


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._asked = 0
        self.errors: list[str] = []
        """Exceptions and console errors of the page, and what the browser logged as an error, but for refused requests:
        the browser logs each of them, too."""
        self.transfers: dict[str, Transfer] = {}
        """Every request so far, by its id."""

    # -- the protocol

    def call(self, method: str, **parameters: Any) -> Any:
        self._asked += 1
        self._connection.send(json.dumps({"id": self._asked, "method": method, "params": parameters}))
        while (answer := json.loads(self._connection.recv(PATIENCE_S))).get("id") != self._asked:
            self._heard(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def listen(self) -> None:
        """Collect errors and requests from now on."""
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(f"{domain}.enable")

    def _heard(self, event: dict[str, Any]) -> None:
        method, said = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(each.get("value", each.get("description"))) for each in said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            if said["entry"]["source"] != "network":
                self.errors.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            request = said["request"]
            self.transfers[said["requestId"]] = Transfer(request["method"], request["url"], request.get("postData", ""))
        elif method == "Network.responseReceived" and said["requestId"] in self.transfers:
            transfer = self.transfers[said["requestId"]]
            transfer.status = said["response"]["status"]
            transfer.headers = {name.lower(): value for name, value in said["response"]["headers"].items()}
        elif method == "Network.loadingFinished" and said["requestId"] in self.transfers:
            self.transfers[said["requestId"]].size = said["encodedDataLength"]

    # -- what a person does

    def size(self, device: dict[str, Any]) -> None:
        self.call("Emulation.setDeviceMetricsOverride", **device)

    def colours(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def visit(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def click(self, selector: str) -> None:
        """Click in the middle of the element, as a pointer does: once it is there, rests, and nothing covers it."""
        self.shows(
            f"""(async () => {{
                const element = document.querySelector({json.dumps(selector)});
                if (!element) return false;
                element.scrollIntoView({{block: "center", behavior: "instant"}});
                const before = element.getBoundingClientRect();
                await new Promise(resolve => setTimeout(resolve, 40));
                const area = element.getBoundingClientRect();
                const [x, y] = [area.left + area.width / 2, area.top + area.height / 2];
                globalThis.clicked = [x, y];
                return before.left === area.left && before.top === area.top && element.isConnected
                    && element.contains(document.elementFromPoint(x, y));
            }})()"""
        )
        x, y = self.js("globalThis.clicked")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, *keys: str) -> None:
        for key in keys:
            told = {"key": key, **({"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {})}
            code = KEYS.get(key, ord(key[0].upper()))
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, windowsVirtualKeyCode=code, **told)

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        self.shows(f"!!document.querySelector({json.dumps(selector)})")
        self.js(f"(field => {{ field.focus(); field.select?.(); }})(document.querySelector({json.dumps(selector)}))")
        self.call("Input.insertText", text=text)

    # -- what a person sees

    def js(self, expression: str) -> Any:
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def text(self, ident: str) -> str:
        return str(self.js(f"document.getElementById('{ident}').innerText"))

    def shows(self, expression: str) -> None:
        """Wait until the expression is true. While it throws, as what it looks at is not there yet, it is not."""
        tried = f"(async () => {{ try {{ return !!(await ({expression})); }} catch {{ return false; }} }})()"
        try:
            until(lambda: self.js(tried), expression, PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {self.js('document.body?.innerText')}") from None

    def reads(self, text: str) -> None:
        """Wait until the page has this text."""
        self.shows(f"document.body?.innerText.includes({json.dumps(text)})")

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def tab(profile: Path, device: dict[str, Any] = DESKTOP) -> Iterator[Page]:
    """An empty tab of a browser with a profile of its own."""
    command = [tool("chromium", "chromium-browser"), *FLAGS, f"--user-data-dir={profile}"]
    with running([*command, "--remote-debugging-port=0", "about:blank"]):
        port = profile / "DevToolsActivePort"
        until(lambda: port.exists() and port.read_text().count("\n") == 1, "chromium", PATIENCE_S)
        number, path = port.read_text().split()
        with connect(f"ws://127.0.0.1:{number}{path}", max_size=None, proxy=None) as browser:
            target = Page(browser).call("Target.createTarget", url="about:blank")["targetId"]
        # With a bound on messages that wait, its end would take 10 s: it is behind the events that no call has read.
        address = f"ws://127.0.0.1:{number}/devtools/page/{target}"
        with connect(address, max_size=None, max_queue=None, proxy=None) as connection:
            page = Page(connection)
            page.size(device)
            yield page
