"""A real Chromium, and what the app in it drew: the bytes for the page's terminal, as pyte reads them."""

import base64
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyte
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains

from tests.pty.terminal import UNKNOWN_TO_PYTE

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--window-size=1400,800",
)  # fmt: skip

# The page's terminal draws on a canvas; what it is told to draw goes through here first.
LISTEN = """
window.told = [];
window.WebSocket = class extends WebSocket {
  constructor(...all) {
    super(...all);
    this.addEventListener("message", async (message) => {
      if (typeof message.data === "string") return;
      const place = window.told.push(null) - 1;
      window.told[place] = [...new Uint8Array(await new Response(message.data).arrayBuffer())];
    });
    this.addEventListener("open", () => { window.asked = String(all[0]); });
  }
};
"""
TOLD = """
const whole = window.told.findIndex((part) => part === null);
const parts = (whole < 0 ? window.told : window.told.slice(0, whole)).flat();
let text = ""; for (const byte of parts) text += String.fromCharCode(byte);
return [btoa(text), window.asked || ""];
"""


def why_not() -> str:
    """Why there is no Chromium to drive; empty where there is one."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(missing)} on PATH" if missing else ""


class Browser:
    """Chromium with a profile of its own; ``open`` gives a tab."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self._fresh = True

    def open(self, address: str) -> "Tab":
        if not self._fresh:
            self.driver.switch_to.new_window("tab")
        self._fresh = False
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": LISTEN})
        self.driver.get(address)
        return Tab(self.driver)

    def asked_for(self) -> set[str]:
        """Addresses that pages asked for over the network; the browser's own pages are no part of it."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return {
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
            and message["params"]["request"]["url"].startswith(("http:", "https:"))
        }

    def close(self) -> None:
        self.driver.quit()


class Tab:
    """One tab; it is brought to the front before each use."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._handle = driver.current_window_handle

    def _front(self) -> None:
        if self._driver.current_window_handle != self._handle:
            self._driver.switch_to.window(self._handle)

    def type(self, *keys: str) -> None:
        """Press keys as a user does, wherever the page has its focus."""
        self._front()
        ActionChains(self._driver).send_keys(*keys).perform()

    def text(self) -> str:
        """The terminal's screen."""
        self._front()
        encoded, asked = self._driver.execute_script(TOLD)
        query = dict(part.split("=") for part in asked.partition("?")[2].split("&") if "=" in part)
        screen = pyte.Screen(int(query.get("width", 80)), int(query.get("height", 24)))
        pyte.ByteStream(screen).feed(UNKNOWN_TO_PYTE.sub(b"", base64.b64decode(encoded)))
        return "\n".join(line.rstrip() for line in screen.display)

    def wait_for(self, wanted: str | Callable[[str], bool], timeout_s: float = 60.0) -> str:
        deadline = time.monotonic() + timeout_s
        while True:
            text = self.text()
            if wanted in text if isinstance(wanted, str) else wanted(text):
                return text
            late = time.monotonic() >= deadline
            assert not late, f"{wanted!r} did not come in {timeout_s} s; {self._state()}:\n{text}"
            time.sleep(0.1)

    def _state(self) -> str:
        """The page's own words, its address, and what its console says."""
        return f"{self._driver.current_url} says {self.said()!r}, console {self._driver.get_log('browser')}"

    def picture(self) -> bytes:
        """The page as a PNG."""
        self._front()
        return bytes(self._driver.get_screenshot_as_png())

    def said(self) -> str:
        """What the page says outside the terminal."""
        self._front()
        return str(self._driver.execute_script("return document.body.innerText"))

    def close(self) -> None:
        self._front()
        self._driver.close()
        self._driver.switch_to.window(self._driver.window_handles[0])
