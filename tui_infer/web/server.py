"""The web server: this machine only, for who has the address that was printed, one app process a tab."""

import asyncio
import logging
import secrets
import shlex
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from string import Template

from aiohttp import web
from textual_serve.server import Server

HOST = "127.0.0.1"
MOST_TABS = 16
SHUTDOWN_S = 2.0
PAGE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.html", "page.js"))
SMALLEST_FONT, LARGEST_FONT, FONT = 6, 48, 15

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS = {
    # Scripts, fonts and sockets of this server only; nothing may put the page into a frame.
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self' ws://{host}; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class TabServer(Server):
    """Serves ``command``, once for each tab.

    A port of this machine is open to all its users and, through a browser, to every web page. So a request
    must name this host and come from no other page, and the first one has to bring the token of the address
    that was printed; a cookie stands for it from then on.
    """

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(f"exec {shlex.join(command)}", host=HOST, title="tui-infer")
        self.token = secrets.token_urlsafe(18)
        self.tabs = 0
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        """What a browser has to open."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    async def listen(self, port: int) -> None:
        """Begin to serve; port 0 takes any that is free.

        Raises:
            OSError: the port is taken or may not be used.
        """
        logging.getLogger("textual-serve").setLevel(logging.ERROR)
        app = await self._make_app()
        app.middlewares.append(self._guard)
        app.router.add_get("/page.js", self._script)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def on_startup(self, app: web.Application) -> None:
        """The command line says what there is to say."""

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        hosts = {f"{name}:{self.port}" for name in (HOST, "localhost")}
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if host not in hosts or origin not in (None, f"http://{host}"):
            raise web.HTTPForbidden(text="This server answers pages of its own only.\n")
        cookie = f"tui-infer-{self.port}"
        if request.path == "/" and _same(request.query.get("token", ""), self.token):
            response = web.HTTPSeeOther("/")
            response.set_cookie(cookie, self.token, httponly=True, samesite="Strict")
            raise response
        if not _same(request.cookies.get(cookie, ""), self.token):
            raise web.HTTPForbidden(text="Open the address that tui-infer serve printed in its terminal.\n")
        answer = await handler(request)
        if not answer.prepared:
            for name, value in HEADERS.items():
                answer.headers[name] = value.format(host=host)
        return answer

    async def handle_index(self, request: web.Request) -> web.StreamResponse:
        """A page of our own: textual-serve's asks a font server on the internet."""
        page = Template(await asyncio.to_thread(PAGE.read_text, "utf-8"))
        size = request.query.get("fontsize", "")
        points = int(size) if size.isascii() and size.isdigit() and len(size) < 4 else FONT
        font_size = max(SMALLEST_FONT, min(points, LARGEST_FONT))
        text = page.substitute(host=request.headers["Host"], font_size=font_size)
        return web.Response(text=text, content_type="text/html")

    async def _script(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(SCRIPT)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        if self.tabs >= MOST_TABS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_TABS} tabs are open already; close one of them.\n")
        self.tabs += 1
        try:
            return await super().handle_websocket(request)
        finally:
            self.tabs -= 1


def _same(given: str, wanted: str) -> bool:
    return secrets.compare_digest(given.encode(errors="replace"), wanted.encode())
