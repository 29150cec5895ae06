"""What the app copies in a served tab is in the clipboard of a real Chromium, by a click where it refuses."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

pytest.importorskip("textual_serve")
pytest.importorskip("selenium")

from tests.waiting import wait_until_sync
from tests.web.chromium import Browser, Tab, why_not
from tui_infer.clipboard import copied
from tui_infer.web.server import TabServer

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is one")

TEXT = "größe 東京 {'a': 1}\n" * 500
SEQUENCE = copied(TEXT, {"TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver", "TMUX": "/tmp/x"}).sequence
# Stands for the app: it copies at every key.
APP = f"""
import os
def draw(text):
    data = text.encode()
    os.write(1, b"D%s%s" % (len(data).to_bytes(4, "big"), data))
os.write(1, b"__GANGLION__\\n")
draw("Press a key to copy.")
while data := os.read(0, 4096):
    if b'D' in data and b'c' in data:
        draw({SEQUENCE!r} + "copied")
"""


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = TabServer([sys.executable, "-c", APP])
    await server.listen(0)
    yield server.address
    await server.close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path / "profile")
    yield made
    made.close()


def clipboard(browser: Browser) -> str:
    permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.driver.execute_cdp_cmd("Browser.grantPermissions", permissions)
    script = (
        "const done = arguments[0]; navigator.clipboard.readText().then(done, (why) => done(String(why)))"
    )
    return str(browser.driver.execute_async_script(script))


def opened(browser: Browser, address: str) -> Tab:
    tab = browser.open(address)
    tab.wait_for("Press a key to copy.")
    return tab


async def test_what_is_copied_is_in_the_clipboard(address: str, browser: Browser) -> None:
    def work() -> None:
        tab = opened(browser, address)
        tab.type("c")
        tab.wait_for("copied")
        wait_until_sync(lambda: clipboard(browser) == TEXT, 20)
        assert "click" not in tab.said()

    await asyncio.to_thread(work)


async def test_where_the_browser_refuses_a_click_copies_and_the_terminal_has_the_keys_again(
    address: str, browser: Browser
) -> None:
    def work() -> None:
        tab = opened(browser, address)
        denied = {"permission": {"name": "clipboard-write"}, "setting": "denied"}
        browser.driver.execute_cdp_cmd("Browser.setPermission", denied)
        tab.type("c")
        wait_until_sync(lambda: "asks for a click to copy 9,000 characters" in tab.said(), 20)
        browser.driver.find_element("css selector", ".copy .do").click()
        wait_until_sync(lambda: "click" not in tab.said(), 20)
        assert clipboard(browser) == TEXT
        tab.type("c")
        tab.wait_for(lambda text: text.count("copied") == 2)

    await asyncio.to_thread(work)
