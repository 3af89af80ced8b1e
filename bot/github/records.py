"""What is read of GitHub's replies: the few fields that decide something."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from bot.document import Strict

__all__ = [
    "Account", "AppName", "Branch", "CheckOutput", "CheckRun", "Comment", "Commit", "Comparison",
    "File", "IssueEvent", "Job", "Pull", "Ref", "Repository",
    "RequiredCheck", "Role", "Rule", "Run", "Started", "Status", "Tree", "Write",
]  # fmt: skip


class Record(BaseModel):
    """A part of a reply; GitHub sends many more fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Account(Record):
    """A person, an organisation or an App's bot."""

    login: str
    id: int = 0
    type: str = "User"


class AppName(Record):
    """The App behind a check run or a comment."""

    id: int
    slug: str = ""


class Repository(Record):
    """A repository, or the fork that a head lies in."""

    id: int
    full_name: str
    default_branch: str = ""


class Branch(Record):
    """Head or base of a pull request; `repo` is None where the fork was deleted."""

    ref: str
    sha: str
    repo: Repository | None


class Pull(Record):
    """A pull request. The fields with a default are only in the reply for a single one."""

    number: int
    title: str
    body: str | None
    state: Literal["open", "closed"]
    draft: bool = False
    user: Account | None
    head: Branch
    base: Branch
    updated_at: datetime
    merged_at: datetime | None
    auto_merge: dict[str, Any] | None = None
    changed_files: int | None = None
    commits: int | None = None
    mergeable: bool | None = None


class File(Record):
    """A file of a pull request as its head has it; `previous_filename` of a renamed one.

    `patch`: the changed lines, absent where there are too many or the file is no text; `changes`:
    how many there are.
    """

    filename: str
    status: str
    sha: str | None = None
    previous_filename: str = ""
    patch: str = ""
    changes: int = 1


class Sha(Record):
    """A commit that something names."""

    sha: str


class Comparison(Record):
    """Where two commits have parted; `base_commit` is the first, `files` 300 at most."""

    base_commit: Sha
    merge_base_commit: Sha
    files: list[File] = []


class TreeItem(Record):
    """A path of a tree."""

    path: str
    type: str
    sha: str


class Tree(Record):
    """All paths of a commit."""

    tree: list[TreeItem]
    truncated: bool


class Commit(Record):
    """A commit of a pull request and the accounts that GitHub knows behind it.

    It says `{}` or null where it knows none.
    """

    sha: str
    author: Account | None
    committer: Account | None

    @field_validator("author", "committer", mode="before")
    @classmethod
    def _nobody(cls, value: object) -> object:
        return value or None


class Comment(Record):
    """A comment; `edited` comes from the two times, GitHub gives no flag.

    They have whole seconds: an edit within the second in which a comment was written is not seen.
    """

    id: int
    body: str = ""
    user: Account | None
    created_at: datetime
    updated_at: datetime
    performed_via_github_app: AppName | None = None

    @property
    def edited(self) -> bool:
        """Whether its text may differ from what its author once sent."""
        return self.updated_at != self.created_at


class IssueEvent(Record):
    """Something that happened to a pull request; `actor` is None where the account is gone."""

    id: int
    event: str
    actor: Account | None
    created_at: datetime


class CheckOutput(Record):
    """The text of a check run."""

    title: str | None = None
    summary: str | None = None
    text: str | None = None
    annotations_count: int = 0


class CheckRun(Record):
    """A check run and the App that made it, which is the only proof of its source."""

    id: int
    name: str
    head_sha: str
    status: str
    conclusion: str | None
    external_id: str | None = None
    started_at: datetime | None
    completed_at: datetime | None
    output: CheckOutput
    app: AppName | None


class Status(Record):
    """A commit status; `creator` is the only hint of its source."""

    id: int
    context: str
    state: Literal["error", "failure", "pending", "success"]
    description: str | None
    target_url: str | None
    creator: Account | None
    created_at: datetime


class Run(Record):
    """A workflow run; status and conclusion are open sets on GitHub's side."""

    id: int
    name: str | None
    path: str
    display_title: str
    event: str
    status: str | None
    conclusion: str | None
    head_branch: str | None
    head_sha: str
    run_attempt: int = 1
    actor: Account | None = None
    triggering_actor: Account | None = None
    head_repository: Repository | None = None
    created_at: datetime
    updated_at: datetime | None = None


class Job(Record):
    """A job of a run."""

    id: int
    name: str
    status: str
    conclusion: str | None
    run_attempt: int = 1
    labels: list[str] = []
    runner_name: str | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None


class Ref(Record):
    """A git reference."""

    ref: str
    object: dict[str, str]

    @property
    def sha(self) -> str:
        """The commit that it names."""
        return self.object["sha"]


class RequiredCheck(Record):
    """A check that a ruleset requires; without an App id anybody may post it."""

    context: str
    integration_id: int | None = None


class Rule(Record):
    """A rule of a ruleset that holds for a branch."""

    type: str
    parameters: dict[str, Any] = {}


class Started(Record):
    """The reply to a dispatch."""

    workflow_run_id: int


class Role(Record):
    """A role in the repository; `role_name` tells maintain from write, `permission` does not."""

    permission: str
    role_name: str = ""


class Write(Strict):
    """One request that changes something on GitHub, sent or (dry run) only said."""

    method: Literal["POST", "PATCH", "PUT", "DELETE"]
    path: str
    body: dict[str, Any]
