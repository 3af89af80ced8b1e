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
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import jwt

from tests.github.bodies import Bodies, stamp
from tests.github.contract import API_VERSION, Call, load
from tests.github.world import GREEN, Actor, App, Artifact, Refusal, Run, Token, World

# docs, "Permissions required for GitHub Apps": one of these is enough. The names are those of the
# API; in YAML they have dashes. `metadata` is always there, `administration` and `variables`
# cannot be given to GITHUB_TOKEN, `jwt` is the App's own key.
PERMISSIONS: dict[str, tuple[str, ...]] = {
    "actions/cancel-workflow-run": ("actions=write",),
    "actions/create-workflow-dispatch": ("actions=write",),
    "actions/download-artifact": ("actions=read",),
    "actions/force-cancel-workflow-run": ("actions=write",),
    "actions/get-artifact": ("actions=read",),
    "actions/get-job-for-workflow-run": ("actions=read",),
    "actions/get-repo-variable": ("variables=read",),
    "actions/get-workflow": ("actions=read",),
    "actions/get-workflow-run": ("actions=read",),
    "actions/get-workflow-run-attempt": ("actions=read",),
    "actions/list-artifacts-for-repo": ("actions=read",),
    "actions/list-jobs-for-workflow-run": ("actions=read",),
    "actions/list-repo-variables": ("variables=read",),
    "actions/list-repo-workflows": ("actions=read",),
    "actions/list-self-hosted-runners-for-repo": ("administration=read",),
    "actions/list-workflow-run-artifacts": ("actions=read",),
    "actions/list-workflow-runs": ("actions=read",),
    "actions/list-workflow-runs-for-repo": ("actions=read",),
    "actions/re-run-job-for-workflow-run": ("actions=write",),
    "actions/re-run-workflow": ("actions=write",),
    "actions/re-run-workflow-failed-jobs": ("actions=write",),
    "apps/create-installation-access-token": ("jwt",),
    "apps/get-authenticated": ("jwt",),
    "apps/get-repo-installation": ("jwt",),
    "checks/create": ("checks=write",),
    "checks/get": ("checks=read",),
    "checks/get-suite": ("checks=read",),
    "checks/list-annotations": ("checks=read",),
    "checks/list-for-ref": ("checks=read",),
    "checks/list-for-suite": ("checks=read",),
    "checks/list-suites-for-ref": ("checks=read",),
    "checks/rerequest-run": ("checks=write",),
    "checks/update": ("checks=write",),
    "git/get-ref": ("contents=read",),
    "git/list-matching-refs": ("contents=read",),
    "issues/add-labels": ("issues=write", "pull_requests=write"),
    "issues/create-comment": ("issues=write", "pull_requests=write"),
    "issues/delete-comment": ("issues=write", "pull_requests=write"),
    "issues/get": ("issues=read", "pull_requests=read"),
    "issues/get-comment": ("issues=read", "pull_requests=read"),
    "issues/list-comments": ("issues=read", "pull_requests=read"),
    "issues/list-comments-for-repo": ("issues=read", "pull_requests=read"),
    "issues/list-labels-on-issue": ("issues=read", "pull_requests=read"),
    "issues/remove-label": ("issues=write", "pull_requests=write"),
    "issues/set-labels": ("issues=write", "pull_requests=write"),
    "issues/update-comment": ("issues=write", "pull_requests=write"),
    "pulls/get": ("pull_requests=read",),
    "pulls/list": ("pull_requests=read",),
    "pulls/list-commits": ("pull_requests=read",),
    "pulls/list-files": ("pull_requests=read",),
    "pulls/update": ("pull_requests=write",),
    "rate-limit/get": ("metadata=read",),
    "reactions/create-for-issue-comment": ("issues=write", "pull_requests=write"),
    "reactions/delete-for-issue-comment": ("issues=write", "pull_requests=write"),
    "reactions/list-for-issue-comment": ("issues=read", "pull_requests=read"),
    "repos/compare-commits-with-basehead": ("contents=read",),
    "repos/create-commit-status": ("statuses=write",),
    "repos/get": ("metadata=read",),
    "repos/get-branch": ("contents=read",),
    "repos/get-branch-rules": ("metadata=read",),
    "repos/get-collaborator-permission-level": ("metadata=read",),
    "repos/get-combined-status-for-ref": ("statuses=read",),
    "repos/get-commit": ("contents=read",),
    "repos/get-content": ("contents=read",),
    "repos/get-environment": ("actions=read",),
    "repos/get-status-checks-protection": ("administration=read",),
    "repos/list-branches": ("contents=read",),
    "repos/list-commit-statuses-for-ref": ("statuses=read",),
    "repos/list-deployment-branch-policies": ("actions=read",),
    "repos/list-pull-requests-associated-with-commit": ("pull_requests=read",),
    "users/get-authenticated": ("person",),
}
# docs, repository roles: who may without owning the thing; the rest of the writes needs write.
RANKS = ("none", "read", "triage", "write", "maintain", "admin")
SMALL_WRITES = {
    "issues/create-comment": "none",
    "issues/delete-comment": "none",
    "issues/update-comment": "none",
    "reactions/create-for-issue-comment": "none",
    "reactions/delete-for-issue-comment": "none",
    "issues/add-labels": "triage",
    "issues/remove-label": "triage",
    "issues/set-labels": "triage",
}
MAX_FILES, MAX_COMMITS, MAX_RUNS = 3000, 250, 1000  # spec of pulls/list-files, -commits, runs
LINK_LIFE = timedelta(
    minutes=1
)  # spec actions/download-artifact: "This URL expires after 1 minute"
REFUSED = "Resource not accessible by integration"  # the service's words for a missing permission


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


@dataclass
class Reply:
    """What a handler answers; `items` are served in pages, under `key` where the body is a dict."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    items: list[Any] | None = None
    key: str = ""


@dataclass(frozen=True)
class Request:
    """A routed request, and who makes it."""

    call: Call
    token: Token

    @property
    def actor(self) -> Actor:
        """Who makes it."""
        return self.token.actor

    @property
    def body(self) -> dict[str, Any]:
        """The body, or nothing."""
        return self.call.body or {}

    def number(self, name: str) -> int:
        """A path parameter that is a number."""
        return int(self.call.path[name])


Handler = Callable[["Double", Request], Reply]
HANDLERS: dict[str, Handler] = {}


def serves(*operations: str) -> Callable[[Handler], Handler]:
    """Register a handler for operations."""

    def register(handler: Handler) -> Handler:
        for operation in operations:
            HANDLERS[operation] = handler
        return handler

    return register


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
        assert fault.operation in HANDLERS, fault.operation
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
            return HANDLERS[name](self, request)
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


BLOB = "the storage host"  # for faults of downloads themselves


def _server(double: Double, handler: type[_Quiet]) -> ThreadingHTTPServer:
    bound = type("Bound", (handler,), {"double": double})
    server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
    server.daemon_threads = True
    return server


# Handlers. What they do is in World; here is only which part of it a request means.


@serves(BLOB)
def _no_operation(_: Double, __: Request) -> Reply:
    raise Refusal(404, "Not Found")


@serves("repos/get")
def _repository(github: Double, _: Request) -> Reply:
    return Reply(body=github.bodies.repository())


@serves("rate-limit/get")
def _rate_limit(github: Double, _: Request) -> Reply:
    return Reply(body=github.bodies.template("rate-limit/get"))


@serves("users/get-authenticated")
def _user(github: Double, request: Request) -> Reply:
    keys = ("public_repos", "public_gists", "followers", "following")
    times = dict.fromkeys(("created_at", "updated_at"), stamp(github.world.now))
    words = dict.fromkeys(("bio", "blog", "company", "email", "hireable", "location", "name"))
    body = {**github.bodies.user(request.actor.login), **dict.fromkeys(keys, 0), **times, **words}
    return Reply(body={**body, "blog": ""})


@serves("apps/get-authenticated")
def _app(github: Double, request: Request) -> Reply:
    return Reply(body=github.bodies.app(_own_app(request)))


@serves("apps/get-repo-installation")
def _installation(github: Double, request: Request) -> Reply:
    app = _own_app(request)
    body = github.bodies.template("apps/get-repo-installation")
    body.update(id=app.installation, app_id=app.id, app_slug=app.slug, permissions=app.permissions)
    return Reply(body=body)


@serves("apps/create-installation-access-token")
def _access_token(github: Double, request: Request) -> Reply:
    app = _own_app(request)
    if request.number("installation_id") != app.installation:
        raise Refusal(404, "Not Found")
    token = github.world.installation_token(app, request.body.get("permissions"))
    body = {"token": token.text, "expires_at": stamp(token.expires)}
    return Reply(201, {**body, "permissions": token.permissions, "repository_selection": "all"})


def _own_app(request: Request) -> App:
    assert request.actor.app
    return request.actor.app


@serves("repos/get-collaborator-permission-level")
def _permission(github: Double, request: Request) -> Reply:
    login = request.call.path["username"]
    if login not in github.world.people:
        raise Refusal(404, f"{login} is not a user")
    return Reply(body=github.bodies.permission(login))


@serves("repos/list-branches")
def _branches(github: Double, _: Request) -> Reply:
    own = [(name, sha) for (owner, name), sha in github.world.branches.items()
           if owner == github.world.owner]  # fmt: skip
    items = [github.bodies.branch(name, sha, full=False) for name, sha in sorted(own)]
    return Reply(items=items)


@serves("repos/get-branch")
def _branch(github: Double, request: Request) -> Reply:
    name = request.call.path["branch"]
    sha = github.world.tip(name)
    if sha is None:
        raise Refusal(404, "Branch not found")
    return Reply(body=github.bodies.branch(name, sha, full=True))


@serves("repos/get-branch-rules")
def _rules(github: Double, request: Request) -> Reply:
    return Reply(items=github.bodies.rule(request.call.path["branch"]))


@serves("repos/get-status-checks-protection")
def _protection(github: Double, request: Request) -> Reply:
    protection = github.world.protections.get(request.call.path["branch"])
    if protection is None:
        raise Refusal(404, "Branch not protected")
    checks = [{"context": name, "app_id": app} for name, app in protection.checks]
    body = github.bodies.template("repos/get-status-checks-protection")
    return Reply(body={**body, "contexts": [c["context"] for c in checks], "checks": checks})


@serves("repos/get-environment")
def _environment(github: Double, request: Request) -> Reply:
    name = request.call.path["environment_name"]
    if name not in github.world.environments:
        raise Refusal(404, "Not Found")
    return Reply(body=github.bodies.environment(name))


@serves("repos/list-deployment-branch-policies")
def _policies(github: Double, request: Request) -> Reply:
    names = github.world.environments[request.call.path["environment_name"]]
    template = github.bodies.template("repos/list-deployment-branch-policies")
    item = template["branch_policies"][0]
    return Reply(items=[{**item, "name": name} for name in names], key="branch_policies")


@serves("actions/list-repo-variables")
def _variables(github: Double, _: Request) -> Reply:
    items = [_variable(github, name) for name in github.world.variables]
    return Reply(items=items, key="variables")


@serves("actions/get-repo-variable")
def _get_variable(github: Double, request: Request) -> Reply:
    return Reply(body=_variable(github, request.call.path["name"]))


def _variable(github: Double, name: str) -> dict[str, Any]:
    body = github.bodies.template("actions/get-repo-variable")
    return {**body, "name": name, "value": github.world.variables[name]}


@serves("actions/list-self-hosted-runners-for-repo")
def _runners(github: Double, _: Request) -> Reply:
    template = github.bodies.template("actions/list-self-hosted-runners-for-repo")
    return Reply(items=template["runners"], key="runners")


@serves("git/get-ref")
def _ref(github: Double, request: Request) -> Reply:
    name = request.call.path["ref"]
    sha = github.world.tip(name.removeprefix("heads/")) if name.startswith("heads/") else None
    if sha is None:
        raise Refusal(404, "Not Found")
    return Reply(body=github.bodies.ref(f"refs/{name}", sha))


@serves("git/list-matching-refs")
def _refs(github: Double, request: Request) -> Reply:
    # The description has no `page` here: everything comes at once.
    prefix = f"refs/{request.call.path['ref']}"
    own = sorted((f"refs/heads/{name}", sha) for (owner, name), sha
                 in github.world.branches.items() if owner == github.world.owner)  # fmt: skip
    shown = [github.bodies.ref(name, sha) for name, sha in own if name.startswith(prefix)]
    return Reply(body=shown)


@serves("repos/get-content")
def _content(github: Double, request: Request) -> Reply:
    commit = github.world.resolve(request.call.query.get("ref", github.world.default_branch))
    path = request.call.path["path"]
    if path in commit.files:
        return Reply(body=github.bodies.content(path, commit.files[path]))
    inside = [name for name in sorted(commit.files) if name.startswith(f"{path}/")]
    if not inside:
        raise Refusal(404, "Not Found")
    listed = [github.bodies.content(name, commit.files[name]) for name in inside[:1000]]
    return Reply(body=[{k: v for k, v in item.items() if k != "content"} for item in listed])


@serves("repos/get-commit")
def _commit(github: Double, request: Request) -> Reply:
    commit = github.world.resolve(request.call.path["ref"])
    return Reply(body=github.bodies.commit(commit, full=True))


@serves("repos/compare-commits-with-basehead")
def _compare(github: Double, request: Request) -> Reply:
    base, _, head = request.call.path["basehead"].partition("...")
    sides = [part.rsplit(":", 1) for part in (base, head)]
    found = []
    for side in sides:
        tip = github.world.tip(side[-1], side[0] if len(side) > 1 else None)
        found.append(github.world.resolve(tip or side[-1]))
    return Reply(body=github.bodies.comparison(*found))


@serves("repos/list-pull-requests-associated-with-commit")
def _pulls_of_commit(github: Double, request: Request) -> Reply:
    sha = github.world.resolve(request.call.path["commit_sha"]).sha
    found = [p for p in github.world.pulls.values() if sha in github.world.ancestors(p.sha)
             and (p.state == "open" or p.merged)]  # fmt: skip
    return Reply(items=[github.bodies.pull(pull, full=False) for pull in found])


@serves("pulls/list")
def _pulls(github: Double, request: Request) -> Reply:
    query = {"state": "open", **request.call.query}
    found = [
        pull
        for pull in sorted(github.world.pulls.values(), key=lambda pull: -pull.number)
        if query["state"] in (pull.state, "all")
        and query.get("base") in (None, pull.base)
        and query.get("head") in (None, f"{pull.owner}:{pull.head}")
    ]
    return Reply(items=[github.bodies.pull(pull, full=False) for pull in found])


@serves("pulls/get")
def _pull(github: Double, request: Request) -> Reply:
    pull = github.world.pulls[request.number("pull_number")]
    body = github.bodies.pull(pull)
    pull.computed = True
    return Reply(body=body)


@serves("pulls/update")
def _update_pull(github: Double, request: Request) -> Reply:
    pull = github.world.pulls[request.number("pull_number")]
    github.world.edit_pull(pull, request.actor, **request.body)
    return Reply(body=github.bodies.pull(pull))


@serves("pulls/list-files")
def _files(github: Double, request: Request) -> Reply:
    pull = github.world.pulls[request.number("pull_number")]
    base = github.world.merge_base(pull.base_sha, pull.sha)
    changed = list(github.world.changed(base, pull.sha))[:MAX_FILES]
    return Reply(items=[github.bodies.file(*item) for item in changed])


@serves("pulls/list-commits")
def _commits(github: Double, request: Request) -> Reply:
    world, pull = github.world, github.world.pulls[request.number("pull_number")]
    base = set(world.ancestors(pull.base_sha))
    found = [sha for sha in reversed(world.ancestors(pull.sha)) if sha not in base]
    items = [github.bodies.commit(world.commits[sha]) for sha in found[:MAX_COMMITS]]
    return Reply(items=items)


@serves("issues/get")
def _issue(github: Double, request: Request) -> Reply:
    return Reply(body=github.bodies.issue(github.world.pulls[request.number("issue_number")]))


@serves("issues/list-labels-on-issue")
def _labels(github: Double, request: Request) -> Reply:
    pull = github.world.pulls[request.number("issue_number")]
    return Reply(items=[github.bodies.label(name) for name in pull.labels])


@serves("issues/add-labels", "issues/set-labels")
def _put_labels(github: Double, request: Request) -> Reply:
    pull = github.world.pulls[request.number("issue_number")]
    given = request.body if isinstance(request.body, list) else request.body.get("labels", [])
    kept = pull.labels if request.call.operation.name == "issues/add-labels" else []
    pull.labels = list(dict.fromkeys([*kept, *given]))
    return _labels(github, request)


@serves("issues/remove-label")
def _remove_label(github: Double, request: Request) -> Reply:
    pull = github.world.pulls[request.number("issue_number")]
    if request.call.path["name"] not in pull.labels:
        raise Refusal(404, "Label does not exist")
    pull.labels.remove(request.call.path["name"])
    return Reply(body=[github.bodies.label(name) for name in pull.labels])


@serves("issues/list-comments", "issues/list-comments-for-repo")
def _comments(github: Double, request: Request) -> Reply:
    number = request.call.path.get("issue_number")
    since = request.call.query.get("since", "")
    if number is not None and int(number) not in github.world.pulls:
        raise Refusal(404, "Not Found")
    found = [
        comment
        for _, comment in sorted(github.world.comments.items())
        if number in (None, str(comment.number)) and (stamp(comment.updated_at) or "") >= since
    ]
    return Reply(items=[github.bodies.comment(comment) for comment in found])


@serves("issues/get-comment")
def _comment(github: Double, request: Request) -> Reply:
    return Reply(body=github.bodies.comment(github.world.comments[request.number("comment_id")]))


@serves("issues/create-comment")
def _create_comment(github: Double, request: Request) -> Reply:
    number, text = request.number("issue_number"), request.body["body"]
    comment = github.world.add_comment(number, request.actor, text)
    body = github.bodies.comment(comment)
    return Reply(201, body, {"Location": body["url"]})


@serves("issues/update-comment")
def _update_comment(github: Double, request: Request) -> Reply:
    comment = github.world.comments[request.number("comment_id")]
    github.world.edit_comment(comment, request.actor, request.body["body"])
    return Reply(body=github.bodies.comment(comment))


@serves("issues/delete-comment")
def _delete_comment(github: Double, request: Request) -> Reply:
    comment = github.world.comments[request.number("comment_id")]
    github.world.delete_comment(comment, request.actor)
    return Reply(204)


@serves("reactions/list-for-issue-comment")
def _reactions(github: Double, request: Request) -> Reply:
    comment, content = request.number("comment_id"), request.call.query.get("content")
    found = [item for item in github.world.reactions.values()
             if item.comment == comment and content in (None, item.content)]  # fmt: skip
    return Reply(items=[github.bodies.reaction(item) for item in found])


@serves("reactions/create-for-issue-comment")
def _react(github: Double, request: Request) -> Reply:
    comment = github.world.comments[request.number("comment_id")]
    reaction, new = github.world.react(comment, request.actor, request.body["content"])
    return Reply(201 if new else 200, github.bodies.reaction(reaction))


@serves("reactions/delete-for-issue-comment")
def _unreact(github: Double, request: Request) -> Reply:
    del github.world.reactions[request.number("reaction_id")]
    return Reply(204)


@serves("checks/create")
def _create_check(github: Double, request: Request) -> Reply:
    check = github.world.create_check(request.actor, request.body)
    return Reply(201, github.bodies.check(check))


@serves("checks/update")
def _update_check(github: Double, request: Request) -> Reply:
    check = github.world.checks[request.number("check_run_id")]
    return Reply(
        body=github.bodies.check(github.world.update_check(check, request.actor, request.body))
    )


@serves("checks/get")
def _check(github: Double, request: Request) -> Reply:
    github.world.age_checks()
    return Reply(body=github.bodies.check(github.world.checks[request.number("check_run_id")]))


@serves("checks/rerequest-run")
def _rerequest(github: Double, request: Request) -> Reply:
    check = github.world.checks[request.number("check_run_id")]
    github.world.rerequest_check(check, request.actor)
    return Reply(201, {})


@serves("checks/list-annotations")
def _annotations(github: Double, request: Request) -> Reply:
    check = github.world.checks[request.number("check_run_id")]
    return Reply(items=[github.bodies.annotation(item) for item in check.annotations])


@serves("checks/list-for-ref", "checks/list-for-suite")
def _checks(github: Double, request: Request) -> Reply:
    query, path = {"filter": "latest", **request.call.query}, request.call.path
    if "ref" in path:
        sha, suite = github.world.resolve(path["ref"]).sha, None
    else:
        suite = int(path["check_suite_id"])
        sha = next(item.sha for item in github.world.suites if item.id == suite)
    latest = query["filter"] == "latest"
    found = [
        check
        for check in (github.world.latest_checks if latest else github.world.checks_of)(sha)
        if suite in (None, check.suite.id)
        and query.get("check_name") in (None, check.name)
        and query.get("status") in (None, check.status)
        and query.get("app_id") in (None, str(check.suite.app.id))
    ]
    # Not documented; the newest first is what the service shows.
    return Reply(items=[github.bodies.check(item) for item in reversed(found)], key="check_runs")


@serves("checks/list-suites-for-ref")
def _suites(github: Double, request: Request) -> Reply:
    sha = github.world.resolve(request.call.path["ref"]).sha
    app = request.call.query.get("app_id")
    found = [item for item in github.world.suites
             if item.sha == sha and app in (None, str(item.app.id))]  # fmt: skip
    return Reply(items=[github.bodies.suite(item) for item in found], key="check_suites")


@serves("checks/get-suite")
def _suite(github: Double, request: Request) -> Reply:
    wanted = request.number("check_suite_id")
    found = [item for item in github.world.suites if item.id == wanted]
    if not found:
        raise Refusal(404, "Not Found")
    return Reply(body=github.bodies.suite(found[0]))


@serves("repos/create-commit-status")
def _create_status(github: Double, request: Request) -> Reply:
    status = github.world.add_status(request.actor, request.call.path["sha"], request.body)
    return Reply(201, github.bodies.status(status))


@serves("repos/list-commit-statuses-for-ref")
def _statuses(github: Double, request: Request) -> Reply:
    sha = github.world.resolve(request.call.path["ref"]).sha
    return Reply(items=[github.bodies.status(item) for item in github.world.statuses_of(sha)])


@serves("repos/get-combined-status-for-ref")
def _combined(github: Double, request: Request) -> Reply:
    return Reply(body=github.bodies.combined(github.world.resolve(request.call.path["ref"]).sha))


@serves("actions/list-repo-workflows")
def _workflows(github: Double, _: Request) -> Reply:
    items = [github.bodies.workflow(item) for item in github.world.workflows.values()]
    return Reply(items=items, key="workflows")


@serves("actions/get-workflow")
def _workflow(github: Double, request: Request) -> Reply:
    found = github.world.find_workflow(request.call.path["workflow_id"])
    return Reply(body=github.bodies.workflow(found))


@serves("actions/create-workflow-dispatch")
def _dispatch(github: Double, request: Request) -> Reply:
    body, key = request.body, request.call.path["workflow_id"]
    run = github.world.dispatch(request.actor, key, body["ref"], body.get("inputs", {}))
    if not body.get("return_run_details"):
        return Reply(204)
    url = github.bodies.url(f"/actions/runs/{run.id}")
    return Reply(body={"workflow_run_id": run.id, "run_url": url, "html_url": url})


@serves("actions/list-workflow-runs", "actions/list-workflow-runs-for-repo")
def _runs(github: Double, request: Request) -> Reply:
    query, key = request.call.query, request.call.path.get("workflow_id")
    workflow = github.world.find_workflow(key) if key else None
    found = [
        run
        for run in sorted(github.world.runs.values(), key=lambda run: -run.id)
        if workflow in (None, run.workflow) and _run_matches(run, query)
    ]
    filtered = query.keys() - {"page", "per_page"}
    # spec: at most 1,000 results as soon as there is a filter.
    found = found[:MAX_RUNS] if filtered else found
    return Reply(items=[github.bodies.run(run) for run in found], key="workflow_runs")


def _run_matches(run: Run, query: Mapping[str, str]) -> bool:
    created, when = query.get("created", ""), stamp(run.created_at) or ""
    assert not created or re.match(r"(>=|<=|>|<)\d{4}-", created), f"created {created}"
    bound = created.lstrip("<>=")
    fits = not created or (when >= bound if created.startswith(">") else when <= bound)
    return (
        fits
        and query.get("event") in (None, run.event)
        and query.get("branch") in (None, run.branch)
        and query.get("head_sha") in (None, run.sha)
        and query.get("actor") in (None, run.actor.login)
        and query.get("status") in (None, run.status, run.conclusion)
        and query.get("check_suite_id") in (None, str(run.suite.id))
    )


@serves("actions/get-workflow-run", "actions/get-workflow-run-attempt")
def _run(github: Double, request: Request) -> Reply:
    run = github.world.runs[request.number("run_id")]
    attempt = int(request.call.path.get("attempt_number", run.attempt))
    if attempt > run.attempt:
        raise Refusal(404, "Not Found")
    body = github.bodies.run(run)
    if attempt < run.attempt:
        conclusions = {job.check.conclusion for job in github.world.attempt_jobs(run, attempt)}
        bad = sorted(str(item) for item in conclusions - GREEN)
        body.update(status="completed", conclusion=bad[0] if bad else "success")
    return Reply(body={**body, "run_attempt": attempt})


@serves("actions/list-jobs-for-workflow-run")
def _jobs(github: Double, request: Request) -> Reply:
    run = github.world.runs[request.number("run_id")]
    everything = request.call.query.get("filter") == "all"
    jobs = run.jobs if everything else github.world.attempt_jobs(run)
    return Reply(items=[github.bodies.job(job) for job in jobs], key="jobs")


@serves("actions/get-job-for-workflow-run")
def _job(github: Double, request: Request) -> Reply:
    wanted = request.number("job_id")
    jobs = [job for run in github.world.runs.values() for job in run.jobs if job.id == wanted]
    if not jobs:
        raise Refusal(404, "Not Found")
    return Reply(body=github.bodies.job(jobs[0]))


@serves("actions/cancel-workflow-run", "actions/force-cancel-workflow-run")
def _cancel(github: Double, request: Request) -> Reply:
    run = github.world.runs[request.number("run_id")]
    github.world.cancel(run, force="force" in request.call.operation.name)
    return Reply(202, {})


@serves("actions/re-run-workflow", "actions/re-run-workflow-failed-jobs")
def _rerun(github: Double, request: Request) -> Reply:
    run = github.world.runs[request.number("run_id")]
    failed_only = request.call.operation.name.endswith("failed-jobs")
    github.world.rerun(run, request.actor, failed_only=failed_only)
    return Reply(201, {})


@serves("actions/re-run-job-for-workflow-run")
def _rerun_job(github: Double, request: Request) -> Reply:
    wanted = request.number("job_id")
    for run in github.world.runs.values():
        if any(job.id == wanted for job in run.jobs):
            github.world.rerun(run, request.actor, failed_only=True)
            return Reply(201, {})
    raise Refusal(404, "Not Found")


@serves("actions/list-workflow-run-artifacts", "actions/list-artifacts-for-repo")
def _artifacts(github: Double, request: Request) -> Reply:
    run, name = request.call.path.get("run_id"), request.call.query.get("name")
    found = [item for _, item in sorted(github.world.artifacts.items(), reverse=True)
             if run in (None, str(item.run)) and name in (None, item.name)]  # fmt: skip
    return Reply(items=[github.bodies.artifact(item) for item in found], key="artifacts")


@serves("actions/get-artifact")
def _artifact(github: Double, request: Request) -> Reply:
    return Reply(body=github.bodies.artifact(github.world.artifacts[request.number("artifact_id")]))


@serves("actions/download-artifact")
def _download(github: Double, request: Request) -> Reply:
    artifact = github.world.artifacts[request.number("artifact_id")]
    if github.world.is_expired(artifact):
        raise Refusal(410, "Artifact has expired")
    return Reply(302, headers={"Location": github.link(artifact)})
