"""The web server by itself: who gets in, and to what."""

import re
import sys
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("textual_serve")
from aiohttp import ClientSession, CookieJar, WSServerHandshakeError

from tui_infer.web import server as server_module
from tui_infer.web.server import TabServer

ECHO = [sys.executable, "-c", "import sys; print('__GANGLION__', flush=True); sys.stdin.read()"]


@pytest.fixture
async def server() -> AsyncIterator[TabServer]:
    made = TabServer(ECHO)
    await made.listen(0)
    yield made
    await made.close()


@pytest.fixture
async def browser() -> AsyncIterator[ClientSession]:
    async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as session:  # addresses may have cookies too
        yield session


def base(server: TabServer) -> str:
    return server.address.partition("/?")[0]


async def test_the_printed_address_lets_in_and_leaves_no_token_in_the_address_bar(
    server: TabServer, browser: ClientSession
) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}", server.address)
    async with browser.get(server.address) as answer:
        assert answer.status == 200
        assert str(answer.url) == f"{base(server)}/"
        page = await answer.text()
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert f'ws://127.0.0.1:{server.port}/ws"' in page
    for path in set(re.findall(r'(?:src|href|url\()="?"?(/[^"\s)]+)', page)) - {"/"}:
        async with browser.get(base(server) + path) as answer:
            assert answer.status == 200, path


async def test_the_page_asks_nobody_else_for_anything(server: TabServer, browser: ClientSession) -> None:
    async with browser.get(server.address) as answer:
        page = await answer.text()
    assert not re.findall(r"https?://|//fonts", page)


@pytest.mark.parametrize(
    "path", ["/", "/?token=wrong", "/?token=", "/static/js/textual.js", "/ws", "/page.js"]
)
async def test_without_the_token_nothing_is_to_be_had(
    server: TabServer, browser: ClientSession, path: str
) -> None:
    async with browser.get(base(server) + path) as answer:
        assert answer.status == 403
        assert "Open the address" in await answer.text()


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1:1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
async def test_other_pages_and_names_that_lead_here_are_turned_away_even_with_the_cookie(
    server: TabServer, browser: ClientSession, headers: dict[str, str]
) -> None:
    async with browser.get(server.address):
        pass
    for path in ("/", "/ws"):
        async with browser.get(base(server) + path, headers=headers) as answer:
            assert answer.status == 403
            assert "pages of its own" in await answer.text()


async def test_it_listens_on_this_machine_only(server: TabServer) -> None:
    assert server._runner is not None
    assert [address[0] for address in server._runner.addresses] == ["127.0.0.1"]


async def test_there_is_a_most_of_tabs(
    server: TabServer, browser: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MOST_TABS", 1)
    async with browser.get(server.address):
        pass
    async with browser.ws_connect(f"{base(server)}/ws") as first:
        with pytest.raises(WSServerHandshakeError, match="503"):
            await browser.ws_connect(f"{base(server)}/ws")
        await first.close()
