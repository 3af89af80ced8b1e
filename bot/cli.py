"""The commands; each imports its use case when it is called, so that `--help` costs nothing."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bot.change import Repository
    from bot.check import Request
    from bot.model import Report

__all__ = ["main"]

EXIT_OK, EXIT_RED, EXIT_USAGE, EXIT_INFRA, EXIT_BUG = 0, 1, 2, 3, 70
EPILOG = """\
examples:
  fla-bot check                       the work tree against the default branch
  fla-bot check --base main --head my-branch --format json
  fla-bot run                         run the required lanes of the plan here
  fla-bot judge                       green or not, from the evidence that is there

exit status: 0 nothing is wrong as far as known, 1 something is, 2 usage, 3 infrastructure,
70 a bug of fla-bot
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console script."""
    arguments = _parser().parse_args(argv)
    from bot.errors import InfraError, UserError

    try:
        return int(arguments.command(arguments))
    except UserError as error:
        for fault in error.faults:
            print(f"fla-bot: {_printable(str(fault))}", file=sys.stderr)
        return EXIT_RED
    except InfraError as error:
        print(f"fla-bot: infra: {_printable(str(error))}", file=sys.stderr)
        return EXIT_INFRA
    except KeyboardInterrupt:
        print("fla-bot: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has gone; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except Exception:  # noqa: BLE001  # the last place that can say what happened
        traceback.print_exc()
        print("fla-bot: this is a bug of fla-bot; please report it", file=sys.stderr)
        return EXIT_BUG


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fla-bot",
        description="The gate for kernel changes in flash-linear-attention style repositories.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, function, text in (
        ("check", _check, "what a change touches, breaks and must still prove; runs no kernel"),
        ("run", _run, "execute jobs of the plan on this machine and write evidence"),
        ("judge", _judge, "verdict from the evidence that is there; exit 0 only if ready"),
        ("body", _body, "the managed block of the pull request's body"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(command=function)
        _change_options(command)
        if name in ("check", "judge"):
            command.add_argument(
                "--format", choices=("terminal", "json", "markdown"), default="terminal"
            )
        if name == "run":
            command.add_argument("--lane", help="only this lane; default: every required one")
        if name == "body":
            text = "put the block into this body (- for standard input) and print the whole"
            command.add_argument("--body", metavar="FILE", help=text)
    _contract_parser(commands)
    _github_parser(commands)
    return parser


def _change_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--repo", type=Path, default=Path(), metavar="DIR", help="repository (default: here)")
    add(
        "--base", metavar="REF", help="what the change goes into (default: origin's default branch)"
    )
    add(
        "--head",
        metavar="REF",
        help="the change (default: the work tree, untracked files included)",
    )
    add("--trusted", metavar="REF", help="where policy and contracts come from (default: base)")
    add("--policy", type=Path, metavar="DIR", help="policy folder, where trusted has none")
    add("--evidence", type=Path, metavar="DIR", help="evidence (default: .fla-bot/evidence/<plan>)")


def _contract_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    contract = commands.add_parser("contract", help="work with contract files")
    actions = contract.add_subparsers(required=True, metavar="ACTION")
    validate = actions.add_parser("validate", help="report every fault with line and column")
    validate.add_argument("files", nargs="+", type=Path, metavar="FILE")
    validate.set_defaults(command=_contract_validate)
    schema = actions.add_parser("schema", help="the JSON Schemas of our file formats")
    schema.add_argument("--write", type=Path, metavar="DIR", help="write them there, one file each")
    schema.set_defaults(command=_contract_schema)


def _github_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    github = commands.add_parser("github", help="act on GitHub events")
    actions = github.add_subparsers(required=True, metavar="ACTION")
    handle = actions.add_parser("handle", help="handle one webhook event")
    handle.set_defaults(command=_github_handle)
    handle.add_argument("event", type=Path, metavar="EVENT.json", help="the payload")
    handle.add_argument(
        "--event-name",
        default=os.environ.get("GITHUB_EVENT_NAME"),
        help="kind of the event (default: $GITHUB_EVENT_NAME)",
    )
    handle.add_argument("--repo", type=Path, default=Path(), metavar="DIR", help="base clone")
    handle.add_argument("--evidence", type=Path, metavar="DIR", help="evidence of the plan's jobs")
    handle.add_argument(
        "--dry-run", action="store_true", required=True, help="print every write, make none"
    )


def _request(arguments: argparse.Namespace) -> Request:
    from bot.check import Request

    return Request(arguments.base, arguments.head, arguments.trusted, arguments.policy)


def _repository(arguments: argparse.Namespace) -> Repository:
    from bot.change import Repository

    return Repository(arguments.repo)


def _report(arguments: argparse.Namespace) -> Report:
    from bot.check import analyse, report

    with _repository(arguments) as repository:
        return report(repository, analyse(repository, _request(arguments)), arguments.evidence)


def _show(report: Report, how: str) -> None:
    if how == "json":
        print(report.model_dump_json(by_alias=True, indent=1))
    elif how == "markdown":
        from bot.report.markdown import comment

        print(comment(report))
    else:
        from rich.console import Console

        from bot.report.terminal import show

        show(report, Console(highlight=False))


def _check(arguments: argparse.Namespace) -> int:
    from bot.model import CheckState

    report = _report(arguments)
    _show(report, arguments.format)
    return EXIT_RED if report.state is CheckState.FAILURE else EXIT_OK


def _judge(arguments: argparse.Namespace) -> int:
    from bot.model import CheckState

    report = _report(arguments)
    _show(report, arguments.format)
    return EXIT_OK if report.state is CheckState.SUCCESS else EXIT_RED


def _run(arguments: argparse.Namespace) -> int:
    from bot.check import analyse
    from bot.run import run_plan

    live = sys.stderr.isatty()

    def progress(text: str) -> None:
        if live:
            print(f"\r\x1b[K{_printable(text)}", end="", file=sys.stderr, flush=True)

    with _repository(arguments) as repository:
        analysis = analyse(repository, _request(arguments))
        written = run_plan(
            repository,
            analysis,
            lane=arguments.lane,
            evidence_dir=arguments.evidence,
            progress=progress,
        )
    if live:
        print(file=sys.stderr)
    for path in written:
        print(f"evidence: {path}")
    if not written:
        print("no job of the plan belongs to these lanes; nothing was run")
    return EXIT_OK


def _body(arguments: argparse.Namespace) -> int:
    from bot.report.markdown import body_block, put_block

    block = body_block(_report(arguments))
    if arguments.body is None:
        print(block)
        return EXIT_OK
    # newline="" keeps the body's own line ends.
    if arguments.body == "-":
        body = sys.stdin.buffer.read().decode()
    else:
        body = Path(arguments.body).read_bytes().decode()
    sys.stdout.buffer.write(put_block(body, block).encode())
    return EXIT_OK


def _contract_validate(arguments: argparse.Namespace) -> int:
    from bot import contract, policy
    from bot.errors import Fault, UserError

    faults = []
    for path in arguments.files:
        load = policy.load if path.name == "policy.yaml" else contract.load
        try:
            load(path.read_bytes(), str(path))
        except UserError as error:
            faults += error.faults
        except OSError as error:
            faults.append(Fault(str(path), 0, 0, error.strerror or str(error)))
        else:
            print(f"{path}: ok")
    if faults:
        raise UserError(faults=faults)
    return EXIT_OK


def _contract_schema(arguments: argparse.Namespace) -> int:
    from bot.schemas import schemas

    for name, text in schemas().items():
        if arguments.write:
            arguments.write.mkdir(parents=True, exist_ok=True)
            (arguments.write / f"{name}.json").write_text(text)
        else:
            print(text, end="")
    return EXIT_OK


def _github_handle(arguments: argparse.Namespace) -> int:
    from bot.github.handle import handle

    with _repository(arguments) as repository:
        writes = handle(repository, arguments.event, arguments.event_name, arguments.evidence)
    for write in writes:
        print(write.model_dump_json(indent=1))
    if not writes:
        print("nothing to write")
    return EXIT_OK
