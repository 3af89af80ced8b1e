"""One connection to GitHub's API: the only user of PyGithub, which is imported when first needed.

A request is repeated where that does no harm: GET, PATCH, PUT and DELETE after any failure of the
service, a POST only when GitHub said that it did nothing. One whose reply was lost raises Unsure.
"""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from bot.errors import InfraError

if TYPE_CHECKING:
    from github import Auth, GithubException
    from github.Requester import Requester

__all__ = [
    "App", "AppKey", "Connection", "GitHubError", "Gone", "NotAllowed", "NotFound", "RateLimited",
    "Refused", "Token", "Unsure", "find_app", "parse",
]  # fmt: skip

Item = TypeVar("Item", bound=BaseModel)
Method = Literal["GET", "POST", "PATCH", "PUT", "DELETE"]

# The next version drops fields that are read here and changes dispatch.
API_VERSION = "2022-11-28"
ACTIONS_LOGIN, ACTIONS_APP = "github-actions[bot]", 15368
TRIES = 4
MAX_WAIT_S = 90.0  # a job that sleeps longer than this is better run again
MAX_PAGES = 100
TIMEOUT_S = 30
GITHUB = "https://api.github.com"
# What a token needs, by the last fixed word of a path; GitHub's own header is better, if it comes.
_PERMISSIONS = {
    "check-runs": "checks", "statuses": "statuses", "comments": "pull-requests",
    "events": "pull-requests",
    "reactions": "pull-requests", "pulls": "pull-requests", "actions": "actions",
    "git": "contents", "contents": "contents",
}  # fmt: skip


class GitHubError(InfraError):
    """GitHub answered, and not as hoped."""

    def __init__(self, message: str, status: int = 0) -> None:
        self.status = status
        super().__init__(message)


class NotAllowed(GitHubError):
    """The token lacks a permission, or nobody with this token may."""


class NotFound(GitHubError):
    """It is not there, or this token may not see it; GitHub does not tell the two apart."""


class Gone(GitHubError):
    """It was there."""


class Refused(GitHubError):
    """GitHub understood and will not: 409, 422."""


class RateLimited(GitHubError):
    """A limit that ends too late to wait for."""


class Unsure(GitHubError):
    """The reply was lost, so the change may have been made."""


class _Later(Exception):
    """GitHub refused for now and did nothing; any request may be sent again after a while."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        super().__init__(wait_s)


@dataclass(frozen=True)
class Token:
    """GITHUB_TOKEN of a job."""

    text: str
    login: str = ACTIONS_LOGIN
    app_id: int = ACTIONS_APP

    def __repr__(self) -> str:
        return f"Token(login={self.login!r})"


@dataclass(frozen=True)
class App:
    """A GitHub App as installed; its tokens are asked for when needed."""

    app_id: int
    private_key: str
    slug: str
    installation: int
    permissions: tuple[tuple[str, str], ...] = ()

    @property
    def login(self) -> str:
        """The account that the App's comments carry."""
        return f"{self.slug}[bot]"

    def __repr__(self) -> str:
        return f"App(app_id={self.app_id}, slug={self.slug!r})"


class _Installation(BaseModel):
    id: int
    app_slug: str


@dataclass(frozen=True)
class AppKey:
    """An App as itself, before it is installed anywhere: good for finding its installation."""

    app_id: int
    private_key: str

    def __repr__(self) -> str:
        return f"AppKey(app_id={self.app_id})"


class Connection:
    """GitHub's API as one identity."""

    def __init__(
        self,
        identity: Token | App | AppKey,
        *,
        base_url: str = GITHUB,
        timeout_s: int = TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.identity, self.base_url = identity, base_url.rstrip("/")
        self._timeout_s, self._sleep, self._clock = timeout_s, sleep, clock
        self._open: Requester | None = None
        self.requests = 0

    def close(self) -> None:
        """Close what is open."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._clock()

    def pause(self, attempt: int) -> None:
        """Wait a little longer after each failure."""
        self._sleep(2.0**attempt)

    def get(self, path: str, kind: type[Item]) -> Item:
        """One thing."""
        return parse(kind, self.send("GET", path)[1])

    def pages(
        self,
        path: str,
        kind: type[Item],
        *,
        key: str = "",
        query: Mapping[str, str] | None = None,
        counted: bool = True,
    ) -> Iterator[Item]:
        """Every item of a listing; a page that is missing is an error, never a shorter listing."""
        url, parameters = path, {"per_page": "100", **(query or {})}
        seen = total = 0
        for page in range(MAX_PAGES):
            headers, data = self.send("GET", url, query=parameters if page == 0 else None)
            items = _listed(data.get(key) if key and isinstance(data, dict) else data)
            yield from (parse(kind, item) for item in items)
            seen += len(items)
            total = data.get("total_count", 0) if key and counted else 0
            if not items and page > 0:
                raise InfraError(f"GitHub lost a page of {path}")
            url = _next(headers)
            if not url:
                if seen < total:
                    raise InfraError(f"GitHub listed {seen} of {total} items of {path}")
                return
        raise InfraError(f"{path} has more than {MAX_PAGES} pages")

    def send(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: dict[str, Any] | None = None,
        again: bool | None = None,
    ) -> tuple[dict[str, str], Any]:
        """One request, repeated where that does no harm."""
        again = method != "POST" if again is None else again
        for attempt in range(TRIES):
            last = attempt + 1 == TRIES
            try:
                return self._request(method, path, query, body)
            except _Later as later:
                if last or later.wait_s > MAX_WAIT_S:
                    words = f"GitHub asks to wait {later.wait_s:.0f} s before {method} {path}"
                    raise RateLimited(words, 429) from later
                self._sleep(later.wait_s)
            except Unsure:
                if last or not again:
                    raise
                self.pause(attempt)
        raise AssertionError("unreachable")

    def _request(
        self,
        method: Method,
        path: str,
        query: Mapping[str, str] | None,
        body: dict[str, Any] | None,
    ) -> tuple[dict[str, str], Any]:
        """One request to PyGithub, with every way to fail as one of ours."""
        requester = self._requester()
        from github import GithubException

        self.requests += 1
        try:
            return requester.requestJsonAndCheck(
                method, path, parameters=dict(query) if query else None, input=body
            )
        except GithubException as error:
            raise self._failure(method, path, error) from error
        except (OSError, ValueError) as error:
            # requests' exceptions are OSErrors, RetryError too; cut JSON is a ValueError.
            raise Unsure(f"{method} {path}: {type(error).__name__}: {error}") from error
        except (AssertionError, RuntimeError) as error:
            # PyGithub's words for a reply that points to a host which is not the API's.
            raise GitHubError(f"{method} {path}: {type(error).__name__}: {error}") from error

    def _failure(self, method: Method, path: str, error: GithubException) -> Exception:
        headers = {name.lower(): text for name, text in (error.headers or {}).items()}
        wait_s = self._asked_wait_s(error.status, headers, _words(error))
        if wait_s is not None:
            return _Later(wait_s)
        where = f"{method} {path}: {error.status} {_words(error)}"
        if error.status >= 500:
            return Unsure(where, error.status)
        if error.status == 401:
            return NotAllowed(f"{where}; the token has ended or is not GitHub's", 401)
        if error.status == 403:
            return NotAllowed(f"{where}; {_needed(method, path, headers)}", 403)
        kind = {404: NotFound, 410: Gone}.get(error.status, Refused)
        return kind(where, error.status)

    def _asked_wait_s(self, status: int, headers: Mapping[str, str], words: str) -> float | None:
        """How long GitHub asks to wait, None where no limit is at work."""
        if status not in (403, 429):
            return None
        if (after := headers.get("retry-after", "")).isdigit():
            return float(after)
        if headers.get("x-ratelimit-remaining") == "0":
            reset = float(headers.get("x-ratelimit-reset") or 0)
            return max(1.0, reset - self._clock() + 1)
        limited = status == 429 or "rate limit" in words.lower()
        return 60.0 if limited else None  # GitHub: "wait for at least one minute"

    def _requester(self) -> Requester:
        """PyGithub's connection, without its retries and pauses: they would post twice."""
        if self._open is None:
            try:
                from github import Github
            except ImportError as error:
                words = "PyGithub is not installed; run `pip install fla-bot[github]`"
                raise InfraError(words) from error
            self._open = Github(
                auth=self._auth(),
                base_url=self.base_url,
                timeout=self._timeout_s,
                user_agent="fla-bot",
                per_page=100,
                retry=None,
                seconds_between_requests=None,
                seconds_between_writes=None,
                lazy=True,
                api_version=API_VERSION,
            ).requester
        return self._open

    def _auth(self) -> Auth.Auth:
        from github import Auth

        identity = self.identity
        if isinstance(identity, Token):
            return Auth.Token(identity.text)
        app = Auth.AppAuth(identity.app_id, identity.private_key)
        if isinstance(identity, AppKey):
            return app
        return app.get_installation_auth(identity.installation, dict(identity.permissions) or None)


def parse(kind: type[Item], data: Any) -> Item:
    """A reply as one of our records."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)[:3]
        words = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in faults)
        raise GitHubError(f"GitHub's reply is not understood: {words}") from error


def _listed(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise GitHubError("GitHub's reply is not the list that it should be")
    return data


def _next(headers: Mapping[str, str]) -> str:
    """The address of the next page, from the Link header."""
    for part in headers.get("link", "").split(","):
        url, _, rel = part.partition(";")
        if 'rel="next"' in rel:
            return url.strip().strip("<>")
    return ""


def _words(error: GithubException) -> str:
    """GitHub's own message with the fields that it complains about."""
    data = error.data if isinstance(error.data, dict) else {}
    parts = [str(data.get("message") or "no message")]
    parts += [str(item) for item in data.get("errors", []) if item]
    return "; ".join(parts)[:500]


def _needed(method: Method, path: str, headers: Mapping[str, str]) -> str:
    """The permission that was missing, as it is written in a workflow."""
    given = headers.get("x-accepted-github-permissions", "")
    if given:
        choices = [item.strip().replace("_", "-").replace("=", ": ") for item in given.split(";")]
        return f"the token needs `{'` or `'.join(choices)}`"
    level = "read" if method == "GET" else "write"
    for part in reversed(path.split("/")):
        if part in _PERMISSIONS:
            return f"the token needs `{_PERMISSIONS[part]}: {level}`, if no rule forbids it"
    return "the token may not do this"


def find_app(
    key: AppKey,
    repository: str,
    *,
    base_url: str = GITHUB,
    permissions: Mapping[str, str] | None = None,
) -> App:
    """The App with its installation on a repository; tokens are narrowed to `permissions`."""
    connection = Connection(key, base_url=base_url)
    try:
        found = connection.get(f"/repos/{repository}/installation", _Installation)
    finally:
        connection.close()
    wanted = tuple(sorted((permissions or {}).items()))
    return App(key.app_id, key.private_key, found.app_slug, found.id, wanted)
