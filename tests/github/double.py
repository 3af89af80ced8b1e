"""GitHub in this process: a World served over HTTP, every request and reply held to the contract.

with Double() as github:
    pull = github.world.open_pull("alice")
    token = github.world.job_token({"issues": "write"})
    ...                                # point a client at github.url
    github.check()                     # fails on any broken request or reply, swallowed or not
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import jwt

from tests.github.bodies import Bodies
from tests.github.contract import API_VERSION, Call, load
from tests.github.operations import OPERATIONS, Reply, Request
from tests.github.permissions import PERMISSIONS, RANKS, SMALL_WRITES
from tests.github.world import Actor, Artifact, Refusal, Token, World

# spec actions/download-artifact: "This URL expires after 1 minute".
LINK_LIFE = timedelta(minutes=1)
REFUSED = "Resource not accessible by integration"  # the service's words
BLOB = "the storage host"  # for faults of downloads themselves


@dataclass
class Fault:
    """A scripted failure of the service.

    It hits `times` requests of an operation, after the first `after` of them. Where `applied`, the
    change is made and only its reply is lost, which is what makes a blind repeat post twice.
    """

    operation: str
    status: int = 0
    message: str = "Server Error"
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int = 1
    after: int = 0
    applied: bool = False
    delay_s: float = 0
    cut: bool = False
    page: int | None = None
    empty: bool = False

    @classmethod
    def bad_gateway(cls, operation: str, **more: Any) -> Fault:
        """502, as GitHub gives when a backend does not answer in time."""
        return cls(operation, 502, **more)

    @classmethod
    def primary_limit(cls, operation: str, wait_s: int, now: datetime, **more: Any) -> Fault:
        """docs, rate limits: 403 or 429, x-ratelimit-remaining 0 and the time of the reset."""
        reset = str(int(now.timestamp()) + wait_s)
        headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}
        words = "API rate limit exceeded for installation ID 1."
        return cls(operation, 403, words, headers, **more)

    @classmethod
    def secondary_limit(cls, operation: str, wait_s: int | None = 7, **more: Any) -> Fault:
        """docs, rate limits: 403 with retry-after, or without it: then wait a minute at least."""
        words = "You have exceeded a secondary rate limit. Please wait a few minutes before you"
        headers = {} if wait_s is None else {"retry-after": str(wait_s)}
        return cls(operation, 403, f"{words} try again.", headers, **more)

    @classmethod
    def too_many(cls, operation: str, wait_s: int = 3, **more: Any) -> Fault:
        """docs, rate limits: 429 is the other status of both limits."""
        return cls(operation, 429, "Too many requests", {"retry-after": str(wait_s)}, **more)


@dataclass(frozen=True)
class Logged:
    """One request as it came and the status that it got."""

    method: str
    path: str
    operation: str
    login: str
    body: Any
    status: int


class Double:
    """The server, its World, and what was wrong with the traffic."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()
        self.contract = load()
        self.lock = threading.RLock()
        self.log: list[Logged] = []
        self.violations: list[str] = []
        self.faults: list[Fault] = []
        self._links: dict[str, tuple[Artifact, datetime]] = {}
        self._servers = [_server(self, _ApiHandler), _server(self, _BlobHandler)]
        self.url = f"http://127.0.0.1:{self._servers[0].server_port}"
        # Another host name, as GitHub's storage has one: a token that follows is seen here.
        self.blob_url = f"http://localhost:{self._servers[1].server_port}"
        self.bodies = Bodies(self.world, self.url)

    def __enter__(self) -> Self:
        for server in self._servers:
            run = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
            run.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def check(self) -> None:
        """Fail on everything that broke the contract, whatever the client made of it."""
        assert not self.violations, "\n".join(self.violations)

    @contextmanager
    def violation(self, words: str) -> Iterator[None]:
        """Expect violations with these words, and only these, inside the block."""
        before = len(self.violations)
        yield
        found, self.violations[before:] = self.violations[before:], []
        assert found, f"no violation; expected one with {words!r}"
        assert all(words in item for item in found), found

    def fail(self, fault: Fault) -> Fault:
        """Script a failure."""
        assert fault.operation in {*OPERATIONS, BLOB}, fault.operation
        self.faults.append(fault)
        return fault

    @property
    def writes(self) -> list[Logged]:
        """Every request that could change something; getting a token changes nothing."""
        auth = "apps/create-installation-access-token"
        return [item for item in self.log if item.method != "GET" and item.operation != auth]

    def sent(self, operation: str) -> list[Logged]:
        """The requests of one operation."""
        return [item for item in self.log if item.operation == operation]

    # One request.

    def answer(self, http: _ApiHandler) -> tuple[Reply, Fault | None]:
        """The reply to a request; the fault, if any, still decides how it is sent."""
        url = urlsplit(http.path)
        body = http.read_body()
        try:
            token = self._authenticate(http.headers.get("Authorization") or "")
            request = Request(self._call(http.command, http.path, body), token)
        except Refusal as refusal:
            self.log.append(Logged(http.command, url.path, "", "", body, refusal.status))
            return _refused(refusal), None
        return self._answer_request(http, request)

    def _call(self, method: str, target: str, body: Any) -> Call:
        url = urlsplit(target)
        found = self.contract.route(method, url.path)
        if found is None:
            self.violations.append(f"no such operation: {method} {url.path}")
            raise Refusal(404, "Not Found")
        operation, path = found
        path = {name: unquote(value) for name, value in path.items()}
        return Call(operation, path, dict(parse_qsl(url.query, keep_blank_values=True)), body)

    def _answer_request(self, http: _ApiHandler, request: Request) -> tuple[Reply, Fault | None]:
        operation = request.call.operation
        self._check_request(http, request)
        fault = self._fault(request)
        applies = fault is None or fault.applied or not fault.status
        reply = self._handle(request) if applies else Reply()
        if fault and fault.status:
            reply = Reply(fault.status, _error(fault.message), dict(fault.headers))
        if fault and fault.empty:
            reply.items = []
        self._page(request, reply)
        self.violations += self.contract.reply_faults(operation, reply.status, reply.body)
        path = urlsplit(http.path).path
        login = request.actor.login
        entry = Logged(
            operation.method, path, operation.name, login, request.call.body, reply.status
        )
        self.log.append(entry)
        return reply, fault

    def _check_request(self, http: _ApiHandler, request: Request) -> None:
        """What GitHub would take and our client must not send is recorded as well."""
        version = http.headers.get("X-GitHub-Api-Version")
        if version != API_VERSION:
            self.violations.append(f"{request.call.operation.name}: API version {version}")
        if http.headers.get("Accept") == "application/octet-stream":
            # issues cacheplane/b4run#541 and ml4t/live#72: 415 since 2026-09-03.
            self.violations.append(f"{request.call.operation.name}: Accept octet-stream (415)")

    def _handle(self, request: Request) -> Reply:
        name = request.call.operation.name
        try:
            self._authorize(request)
            self._validate(request)
            return OPERATIONS[name](self, request)
        except Refusal as refusal:
            return _refused(refusal)
        except KeyError:
            return _refused(Refusal(404, "Not Found"))
        except Exception as error:  # noqa: BLE001 - a bug of the double must not look like GitHub
            self.violations.append(f"{name}: the double failed: {error!r}")
            return _refused(Refusal(500, "Server Error"))

    def _validate(self, request: Request) -> None:
        if faults := self.contract.request_faults(request.call):
            self.violations += faults
            raise Refusal(422, f"Validation Failed: {'; '.join(faults)}")

    def _fault(self, request: Request) -> Fault | None:
        for fault in self.faults:
            page = int(request.call.query.get("page", "1"))
            if fault.operation != request.call.operation.name or fault.page not in (None, page):
                continue
            fault.after -= 1
            if fault.after < 0 and fault.times > 0:
                fault.times -= 1
                return fault
        return None

    def _page(self, request: Request, reply: Reply) -> None:
        """docs, pagination: rel links as long as there is another page."""
        if reply.items is None:
            return
        query, total = request.call.query, len(reply.items)
        size, page = int(query.get("per_page", "30")), int(query.get("page", "1"))
        shown = reply.items[(page - 1) * size : page * size]
        links = []
        last = max(1, -(-total // size))
        for rel, number in (("prev", page - 1), ("next", page + 1), ("last", last)):
            if 1 <= number <= last and number != page:
                # The path of the request is quoted as it came in.
                text = urlencode({**query, "page": number})
                links.append(f'<{self.url}{_path(request.call)}?{text}>; rel="{rel}"')
        if links:
            reply.headers["Link"] = ", ".join(links)
        reply.body = {"total_count": total, reply.key: shown} if reply.key else shown

    # Who may what.

    def _authenticate(self, header: str) -> Token:
        kind, _, text = header.partition(" ")
        if not text:
            raise Refusal(401, "Requires authentication")
        token = self.world.tokens.get(text)
        if token is None and kind == "Bearer":
            return Token(text, self._app_of(text), {"jwt": "write"})
        if token is None or (token.expires and token.expires < self.world.now):
            raise Refusal(401, "Bad credentials")
        return token

    def _app_of(self, text: str) -> Actor:
        """docs, authenticating as an App: RS256, `iss` is the App's id, ten minutes at most."""
        for app in self.world.apps.values():
            try:
                claims = jwt.decode(text, app.public_key, algorithms=["RS256"])
            except jwt.PyJWTError:
                continue
            if str(claims["iss"]) == str(app.id) and claims["exp"] - claims["iat"] <= 660:
                return self.world.app_actor(app)
        raise Refusal(401, "A JSON web token could not be decoded")

    def _authorize(self, request: Request) -> None:
        operation, token = request.call.operation, request.token
        needed = PERMISSIONS[operation.name]
        if request.actor.kind == "person" and needed != ("jwt",):
            self._authorize_person(request)
            return
        if operation.method == "GET" and self._is_public(needed):
            return
        if any(_grants(token.permissions, item) for item in needed):
            return
        if needed == ("jwt",):
            raise Refusal(401, "A JSON web token could not be decoded")
        # docs, troubleshooting: the reply names what would have been enough.
        raise Refusal(403, REFUSED, X_Accepted_GitHub_Permissions="; ".join(needed))

    def _is_public(self, needed: tuple[str, ...]) -> bool:
        """docs, permissions of Apps: public resources can be read without these permissions."""
        open_to_all = {"contents", "pull_requests", "issues", "checks", "statuses"}
        return self.world.public and needed[0].partition("=")[0] in open_to_all

    def _authorize_person(self, request: Request) -> None:
        operation = request.call.operation
        role = self.world.role(request.actor.login)
        if operation.name in ("checks/create", "checks/update"):
            raise Refusal(403, "You must authenticate via a GitHub App.")
        if operation.method == "GET":
            restricted = "administration=read" in PERMISSIONS[operation.name]
            least = "admin" if restricted else "read"
            # recording Repository.testCollaboratorPermissionNoPushAccess: 403 without push access.
            level = operation.name == "repos/get-collaborator-permission-level"
            least = "write" if level else least
        else:
            least = SMALL_WRITES.get(operation.name, "write")
        own = operation.name == "pulls/update" and self._is_own_pull(request)
        if RANKS.index(role) < RANKS.index(least) and not own:
            raise Refusal(404 if role == "none" else 403, "Must have push access to repository")

    def _is_own_pull(self, request: Request) -> bool:
        pull = self.world.pulls.get(request.number("pull_number"))
        return pull is not None and pull.author == request.actor.login

    # Artifact downloads.

    def link(self, artifact: Artifact) -> str:
        """A signed address on the storage host, for one minute."""
        key = f"{artifact.id}-{self.world.next_id()}"
        self._links[key] = (artifact, self.world.now + LINK_LIFE)
        return f"{self.blob_url}/artifact?sig={key}"

    def blob(self, http: _BlobHandler) -> tuple[int, bytes]:
        """The zip behind a link."""
        if "Authorization" in http.headers:
            self.violations.append("a token was sent to the storage host")
        key = dict(parse_qsl(urlsplit(http.path).query)).get("sig", "")
        artifact, end = self._links.get(key, (None, self.world.now))
        if artifact is None or end < self.world.now:
            return 403, b"AuthenticationFailed"
        return 200, artifact.content


def _grants(permissions: Mapping[str, str], needed: str) -> bool:
    name, _, level = needed.partition("=")
    levels = ("read", "write", "admin") if level == "read" else ("write", "admin")
    return permissions.get(name) in levels


def _refused(refusal: Refusal) -> Reply:
    return Reply(refusal.status, _error(refusal.message), refusal.headers)


def _error(message: str) -> dict[str, str]:
    return {"message": message, "documentation_url": "https://docs.github.com/rest"}


def _path(call: Call) -> str:
    path = call.operation.path
    for name, value in call.path.items():
        path = path.replace(f"{{{name}}}", quote(value, safe="/" if name == "path" else ""))
    return path


# HTTP.


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # with wbufsize: 0.9 ms a reply, 45 ms without
    wbufsize = -1
    double: Double

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def send(self, status: int, body: bytes, headers: Mapping[str, str], *, cut: bool) -> None:
        """Write a reply; a cut one announces more than it sends, or ends before its first line."""
        self.close_connection = self.close_connection or cut
        if cut and not body:
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) + (100 if cut else 0)))
        self.end_headers()
        self.wfile.write(body)


class _ApiHandler(_Quiet):
    def read_body(self) -> Any:
        """The JSON body of the request."""
        size = int(self.headers.get("Content-Length") or 0)
        return json.loads(self.rfile.read(size)) if size else None

    def do_GET(self) -> None:
        """All methods alike."""
        with self.double.lock:
            reply, fault = self.double.answer(self)
        if fault and fault.delay_s:
            time.sleep(fault.delay_s)
        headers = {"Content-Type": "application/json; charset=utf-8", **reply.headers}
        body = b"" if reply.body is None else json.dumps(reply.body).encode()
        self.send(reply.status, body, headers, cut=bool(fault and fault.cut))

    do_POST = do_PATCH = do_PUT = do_DELETE = do_GET


class _BlobHandler(_Quiet):
    def do_GET(self) -> None:
        """A download."""
        with self.double.lock:
            status, body = self.double.blob(self)
            cut = next((f for f in self.double.faults if f.operation == BLOB and f.times), None)
        if cut:
            cut.times -= 1
        self.send(status, body, {"Content-Type": "application/zip"}, cut=bool(cut))


def _server(double: Double, handler: type[_Quiet]) -> ThreadingHTTPServer:
    bound = type("Bound", (handler,), {"double": double})
    server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
    server.daemon_threads = True
    return server
