"""A stand-in for the model hub: the parts of its protocol that the client uses to fetch a model."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Repositories by id, each a folder or a number of an HTTP error; ``requests`` is what was asked for."""

    repos: dict[str, Path | int] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def fetched(self) -> set[str]:
        """Names of the files whose content was sent."""
        return {
            line.rsplit("/", 1)[-1]
            for line in self.requests
            if line.startswith("GET") and "/resolve/" in line
        }


@contextmanager
def serve() -> Iterator[Hub]:
    """Run a hub for the length of a ``with`` block."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            hub.requests.append(f"{self.command} {path}")
            parts = path.split("/")
            api = parts[:2] == ["api", "models"]
            repo_id = "/".join(parts[2:4] if api else parts[:2])
            rest = parts[4:] if api else parts[2:]
            repo = hub.repos.get(repo_id, 404)
            if isinstance(repo, int):
                self.fail(repo, {404: "RepoNotFound", 403: "GatedRepo"}.get(repo, ""))
            elif rest[:1] in (["revision"], ["resolve"], ["tree"]) and rest[1] not in ("main", COMMIT):
                self.fail(404, "RevisionNotFound")
            elif api:
                files = [file for file in sorted(repo.rglob("*")) if file.is_file()]
                self.json(self.tree(repo, files) if rest[:1] == ["tree"] else self.info(repo_id, repo, files))
            else:
                self.file(repo / "/".join(rest[2:]))

        def info(self, repo_id: str, repo: Path, files: list[Path]) -> object:
            names = [
                {"rfilename": str(file.relative_to(repo)), "size": file.stat().st_size} for file in files
            ]
            return {"id": repo_id, "modelId": repo_id, "sha": COMMIT, "siblings": names}

        def tree(self, repo: Path, files: list[Path]) -> object:
            return [
                {
                    "type": "file",
                    "path": str(file.relative_to(repo)),
                    "size": file.stat().st_size,
                    "oid": etag(file),
                }
                for file in files
            ]

        def file(self, path: Path) -> None:
            if not path.is_file():
                self.fail(404, "EntryNotFound")
                return
            content = path.read_bytes()
            self.send_response(200)
            self.send_header("ETag", f'"{etag(path)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def json(self, value: object) -> None:
            content = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def fail(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def etag(path: Path) -> str:
    """As git names content: enough for a client that only compares."""
    return hashlib.sha1(path.read_bytes()).hexdigest()
