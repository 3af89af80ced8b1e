"""The commands; each imports its use case when it is called, so that `--help` costs nothing."""

# SPDX-License-Identifier: MIT

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from bot.text import printable

if TYPE_CHECKING:
    from bot.change import Repository
    from bot.check import Request
    from bot.contract import Contract
    from bot.errors import Fault
    from bot.model import Report
    from bot.run import Done

__all__ = ["main"]

EXIT_OK, EXIT_RED, EXIT_INFRA, EXIT_BUG, EXIT_SIGNAL, EXIT_PIPE = 0, 1, 3, 70, 128, 141
RAW = argparse.RawDescriptionHelpFormatter
EPILOG = """\
examples:
  fla-bot check                       the work tree against the default branch
  fla-bot check --base main --head my-branch --format json
  fla-bot run                         run the required lanes of the plan here
  fla-bot judge                       green or not, from the evidence that is there

exit status: 0 nothing is wrong as far as known, 1 something is, 2 usage, 3 infrastructure,
70 a bug of fla-bot, 128 and more: stopped by a signal
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console script."""
    _prepare()
    arguments = _parser().parse_args(argv)
    from bot.errors import InfraError, UserError

    try:
        return int(arguments.command(arguments))
    except UserError as error:
        for fault in error.faults:
            print(f"fla-bot: {printable(str(fault))}", file=sys.stderr)
        return EXIT_RED
    except InfraError as error:
        print(f"fla-bot: infra: {printable(str(error))}", file=sys.stderr)
        return EXIT_INFRA
    except KeyboardInterrupt as stop:
        name, *said = stop.args or ("SIGINT",)
        with contextlib.suppress(OSError):  # the screen may be gone too
            print(f"fla-bot: {'; '.join(['stopped', *said])}", file=sys.stderr, flush=True)
        return EXIT_SIGNAL + signal.Signals[name]
    except BrokenPipeError:
        _close_stdout()
        return EXIT_PIPE
    except OSError as error:
        print(f"fla-bot: infra: {printable(str(error))}", file=sys.stderr)
        return EXIT_INFRA
    except Exception:  # noqa: BLE001  # the last place that can say what happened
        traceback.print_exc()
        print("fla-bot: this is a bug of fla-bot; please report it", file=sys.stderr)
        return EXIT_BUG


def _prepare() -> None:
    # Looking for pydantic's plugins reads the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    # A command lives for a moment and keeps what it builds: collecting costs half its time.
    gc.disable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a C locale cannot show every name
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As Ctrl-C: processes that were started are ended on the way out.
        signal.signal(number, _interrupt)


def _interrupt(number: int, _: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fla-bot",
        description="The gate for kernel changes in flash-linear-attention style repositories.",
        epilog=EPILOG,
        formatter_class=RAW,
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
        if name == "check":
            text = "findings of the whole tree, not only what the change adds"
            command.add_argument("--all", action="store_true", help=text)
        if name == "run":
            command.add_argument("--lane", help="only this lane; default: every required one")
            text = "the lane and commits that `github lane-check` wrote"
            command.add_argument("--plan", type=Path, metavar="FILE", help=text)
            text = "only cells with this in their id: print their figures, write no evidence"
            command.add_argument("--only", metavar="CELL", help=text)
            text = "with --only: draw the inputs from this seed (default: as a job does)"
            command.add_argument("--seed", type=_seed, metavar="N", help=text)
    _verify_parser(commands)
    _coverage_parser(commands)
    _init_parser(commands)
    _explain_parser(commands)
    _contract_parser(commands)
    _github_parser(commands)
    return parser


def _seed(text: str) -> int:
    """A seed as evidence has it."""
    seed = int(text)
    if not 0 <= seed < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 2^63)")
    return seed


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
    add("--title", metavar="TEXT", help="the pull request's title, to be checked")
    add("--body", metavar="FILE", help="the pull request's body (- for standard input)")
    add("--policy", type=Path, metavar="DIR", help="policy folder, where trusted has none")
    add("--evidence", type=Path, metavar="DIR", help="evidence (default: .fla-bot/evidence/<plan>)")


VERIFY = """\
Freezes the gate at REF: policy, contracts, references and the kernels to beat come from there, and
nothing that the work tree edits of them counts. Runs correctness in the lanes that this machine
has; only if every cell passes, it times the rows of the ops that the change touches, both versions
in turn in fresh processes, and prints each with its interval. A speed-up of something wrong is not
reported.

  pass        proved no slower than the policy's margin ("faster": the whole interval is below 0)
  fail        slower, or it launches, waits or allocates more; or timed calls gave wrong results
  not-proven  the interval is too wide to say; run it again on a quieter machine
"""
VERIFY_EPILOG = """\
examples:
  fla-bot verify main                              all rows of what you changed
  fla-bot verify main --row safe_fwd --row decode  only these, while you try things
  fla-bot verify main --lane correctness:sm90 --lane benchmark:sm90

exit status: 0 every cell and row passes, 1 something does not, 3 the machine lacks a device that a
lane wants, or something of it failed
"""


def _verify_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verify = commands.add_parser(
        "verify",
        help="is the work tree right, and is it faster than REF",
        description=VERIFY,
        epilog=VERIFY_EPILOG,
        formatter_class=RAW,
    )
    add = verify.add_argument
    add("ref", metavar="REF", help="the commit whose gate and kernels are the measure")
    text = "only rows with this in `entry_point/row` (a pattern; may be repeated)"
    add("--row", action="append", default=[], metavar="ROW", help=text)
    text = "only this lane (may be repeated; default: those whose device is here)"
    add("--lane", action="append", default=[], metavar="LANE", help=text)
    add("--repo", type=Path, default=Path(), metavar="DIR", help="repository (default: here)")
    text = "where evidence goes (default: .fla-bot/evidence/<plan>)"
    add("--evidence", type=Path, metavar="DIR", help=text)
    verify.set_defaults(command=_verify)


def _coverage_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "which cells of the contracts were really called, forward and backward, by which test"
    coverage = commands.add_parser(
        "coverage",
        help=text,
        description=f"{text}; exit 1 if an enforced contract has one that nothing exercises",
    )
    add = coverage.add_argument
    text = "recordings of pytest, evidence files, or folders of evidence"
    add("files", nargs="*", type=Path, metavar="FILE", help=text)
    add("--op", metavar="OP", help="only this contract, and every cell of it")
    add("--repo", type=Path, default=Path(), metavar="DIR", help="repository (default: here)")
    add("--format", choices=("terminal", "json"), default="terminal")
    coverage.set_defaults(command=_coverage)


def _init_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "write a starting policy and a draft contract for each op, from the tree's text"
    init = commands.add_parser("init", help=text, description=text)
    add = init.add_argument
    add("--repo", type=Path, default=Path(), metavar="DIR", help="repository (default: here)")
    add("--at", default="HEAD", metavar="REF", help="the commit that is read (default: HEAD)")
    add("--force", action="store_true", help="replace files that are there")
    add("--print", action="store_true", help="show the files, write none")
    init.set_defaults(command=_init)


def _explain_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    explain = commands.add_parser("explain", help="the manual of a rule, by code or name")
    explain.add_argument("rule", nargs="?", help="CAL001 or call-binding; without it, list all")
    explain.set_defaults(command=_explain)


DIFF = """\
{}.

  fla-bot contract diff main:contracts/kda.yaml contracts/kda.yaml
"""


def _contract_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    contract = commands.add_parser("contract", help="work with contract files")
    actions = contract.add_subparsers(required=True, metavar="ACTION")
    validate = actions.add_parser("validate", help="report every fault with line and column")
    validate.add_argument("files", nargs="+", type=Path, metavar="FILE")
    validate.set_defaults(command=_contract_validate)
    show = actions.add_parser("show", help="cells, lanes and budgets of a contract")
    show.add_argument("file", metavar="FILE", help="a file, or REF:PATH from git")
    show.set_defaults(command=_contract_show)
    text = "what an edit adds, tightens or weakens; exit 1 if weaker"
    diff = actions.add_parser("diff", help=text, description=DIFF.format(text), formatter_class=RAW)
    diff.add_argument("before", metavar="BEFORE", help="a file, or REF:PATH from git")
    diff.add_argument("after", metavar="AFTER", help="the same")
    diff.set_defaults(command=_contract_diff)
    text = "freeze the errors of passing evidence: contracts/anchors/<op>.json"
    anchor = actions.add_parser("anchor", help=text, description=text)
    anchor.add_argument("files", nargs="+", type=Path, metavar="EVIDENCE.json")
    anchor.add_argument("--repo", type=Path, default=Path(), metavar="DIR", help="default: here")
    anchor.set_defaults(command=_contract_anchor)
    new = actions.add_parser("new", help="print a draft contract to start from")
    new.add_argument("target", metavar="MODULE:FUNCTION", help="fla.ops.gla:chunk_gla")
    new.set_defaults(command=_contract_new)
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
    _github_jobs(actions)


def _github_jobs(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What the jobs of our workflows call; each reads its identity from the environment."""

    def add(name: str, text: str, *, writes: bool = False) -> argparse.ArgumentParser:
        command = actions.add_parser(name, help=text, description=text)
        command.set_defaults(command=_github_job, job=name.replace("-", "_"))
        if writes:
            text = "print every write, make none"
            command.add_argument("--dry-run", action="store_true", help=text)
        return command

    job = add("scope", "read the change of an event as data and write its plan; no writing token")
    job.add_argument("event", type=Path, metavar="EVENT.json", help="the payload")
    job.add_argument("--repo", type=Path, default=Path(), metavar="DIR", help="base clone")
    job.add_argument("--out", type=Path, required=True, metavar="PLAN.json", help="the plan")
    job = add("plan", "validate the plan of `scope`, then decide, write and dispatch", writes=True)
    job.add_argument("plan", type=Path, metavar="PLAN.json", help="what `scope` wrote")
    job.add_argument("--event", type=Path, required=True, metavar="EVENT.json", help="the payload")
    job = add("reconcile", "look at pull requests again and write what differs", writes=True)
    which = job.add_mutually_exclusive_group(required=True)
    which.add_argument("--pr", type=int, metavar="N", help="one pull request")
    which.add_argument("--all", action="store_true", help="all that are due")
    for name, text in (
        ("gate", "whether this run of the executor is the one that was approved"),
        ("lane-check", "the same questions again, on the machine itself"),
    ):
        job = add(name, text)
        job.add_argument("plan_id", metavar="PLAN_ID", help="the row that the run is for")
        if name == "lane-check":
            text = "write the lane's part of the plan there"
            job.add_argument("--out", type=Path, metavar="FILE", help=text)
    job = add("publish", "judge the evidence of this run and publish the verdict", writes=True)
    job.add_argument("plan_id", metavar="PLAN_ID", help="the row that the run is for")
    job.add_argument("--artifacts", type=Path, required=True, metavar="DIR", help="its evidence")
    add("doctor", "whether this repository is set up so that the gate means something")
    job = add("status", "how pull requests stand, and which are due")
    job.add_argument("--pr", type=int, metavar="N", help="one pull request")
    job.add_argument("--json", action="store_true", help="as JSON")


def _request(arguments: argparse.Namespace) -> Request:
    from bot.check import Request

    return Request(
        base=arguments.base,
        head=arguments.head,
        trusted=arguments.trusted,
        policy_dir=arguments.policy,
        title=arguments.title,
        body=_read_body(arguments.body),
        everything=getattr(arguments, "all", False),
    )


def _read_body(name: str | None) -> str | None:
    """A body with its own line ends; what is no UTF-8 in it is kept as it is."""
    if name is None:
        return None
    from bot.errors import UserError

    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UserError(f"--body {name}: {error.strerror}") from error
    return content.decode("utf-8", "surrogateescape")


def _repository(arguments: argparse.Namespace) -> Repository:
    from bot.change import Repository

    return Repository(arguments.repo)


def _report(request: Request, arguments: argparse.Namespace) -> Report:
    from bot.check import analyse, report
    from bot.errors import UserError

    if arguments.evidence is not None and not arguments.evidence.is_dir():
        raise UserError(f"--evidence {arguments.evidence}: there is no such folder")
    with _repository(arguments) as repository:
        return report(repository, analyse(repository, request), request, arguments.evidence)


def _show(report: Report, how: str) -> None:
    """Print; a reader that leaves early (`| head`) must not change the exit status."""
    with contextlib.suppress(BrokenPipeError):
        if how == "json":
            print(report.model_dump_json(by_alias=True, indent=1), flush=True)
        elif how == "markdown":
            from bot.report.markdown import comment

            print(comment(report), flush=True)
        else:
            from bot.report.terminal import console, show

            show(report, console())
        return
    _close_stdout()


def _close_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check(arguments: argparse.Namespace) -> int:
    from bot.model import CheckState

    report = _report(_request(arguments), arguments)
    _show(report, arguments.format)
    return EXIT_RED if report.state is CheckState.FAILURE else EXIT_OK


def _judge(arguments: argparse.Namespace) -> int:
    from bot.model import CheckState

    report = _report(_request(arguments), arguments)
    _show(report, arguments.format)
    return EXIT_OK if report.state is CheckState.SUCCESS else EXIT_RED


def _run(arguments: argparse.Namespace) -> int:
    from bot.check import analyse
    from bot.errors import UserError
    from bot.report.progress import Progress
    from bot.run import run_plan

    if arguments.only is not None or arguments.seed is not None:
        if arguments.only is None or arguments.lane is None:
            raise UserError("--only and --seed: name the cell with --only and its lane with --lane")
        return _run_cells(arguments)
    ordered = _ordered(arguments.plan) if arguments.plan else None
    with _repository(arguments) as repository, Progress() as progress:
        analysis = analyse(repository, ordered[0] if ordered else _request(arguments))
        if ordered and analysis.plan.hash != ordered[1]:
            raise UserError("this bot makes another plan of these commits")
        done = run_plan(
            repository,
            analysis,
            lane=ordered[2] if ordered else arguments.lane,
            evidence_dir=arguments.evidence,
            progress=progress,
        )
    return _tell(done)


def _ordered(path: Path) -> tuple[Request, str, str]:
    """What `github lane-check` wrote: the commits, the hash of their plan, and the lane."""
    from bot.github.order import read_order

    found = read_order(path)
    return found.request(), found.plan.hash, found.lane


def _tell(done: Done) -> int:
    """Say what a run did; the exit status is about the machine, the verdict is `judge`'s."""
    for text, advice in done.sandboxes.items():
        print("\n  ".join(filter(None, (text, advice))))
    for path in done.written:
        print(f"evidence: {path}")
    for name, said in done.results.items():
        again = " (settled for this head; not run again)" if name in done.kept else ""
        print(f"{name}: {said}{again}")
    for name, reason in done.failed.items():
        print(f"fla-bot: infra: {name}: {printable(reason)}", file=sys.stderr)
    if not (done.written or done.kept or done.failed):
        print("no job of the plan belongs to these lanes; nothing was run")
    elif done.results:
        print("Next: run `fla-bot judge` for the verdict and what to do")
    return EXIT_INFRA if done.failed else EXIT_OK


def _run_cells(arguments: argparse.Namespace) -> int:
    from bot.check import analyse
    from bot.report.figures import describe
    from bot.report.progress import Progress
    from bot.run import run_cells

    with _repository(arguments) as repository, Progress() as progress:
        analysis = analyse(repository, _request(arguments))
        found = run_cells(
            repository,
            analysis,
            lane=arguments.lane,
            only=arguments.only,
            seed=arguments.seed,
            progress=progress,
        )
    good = True
    for job, evidence in found:
        books = analysis.books
        contract, anchors = books.contracts[job.op], books.anchors.get(job.op)
        lines, fine = describe(evidence, contract, books.policy, anchors)
        print("\n".join(lines))
        good = good and fine
    return EXIT_OK if good else EXIT_RED


def _coverage(arguments: argparse.Namespace) -> int:
    from bot.coverage import measure
    from bot.report.coverage import show, to_json
    from bot.report.terminal import console

    found = measure(arguments.repo / "contracts", arguments.files, arguments.op)
    with contextlib.suppress(BrokenPipeError):
        if arguments.format == "json":
            print(to_json(found), flush=True)
        else:
            show(found, console(), everything=arguments.op is not None)
    missing = any(op.missing for op in found if op.status == "enforced")
    return EXIT_RED if missing else EXIT_OK


def _verify(arguments: argparse.Namespace) -> int:
    from bot.errors import InfraError
    from bot.report.progress import Progress
    from bot.verify import verify

    with _repository(arguments) as repository, Progress() as progress:
        found = verify(
            repository,
            arguments.ref,
            rows=arguments.row,
            lanes=arguments.lane,
            evidence_dir=arguments.evidence,
            progress=progress,
        )
    for line in found.lines():
        print(printable(line), flush=True)
    if found.missing:
        raise InfraError(found.missing)
    return EXIT_OK if found.is_green else EXIT_RED


def _body(arguments: argparse.Namespace) -> int:
    from bot.report.markdown import body_block, put_block

    request = _request(arguments)
    block = body_block(_report(request, arguments))
    whole = block + "\n" if request.body is None else put_block(request.body, block)
    sys.stdout.buffer.write(whole.encode("utf-8", "surrogateescape"))
    return EXIT_OK


def _init(arguments: argparse.Namespace) -> int:
    from bot.adopt import adopt, write

    with _repository(arguments) as repository:
        adoption = adopt(repository, arguments.at)
        if arguments.print:
            print("".join(f"--- # {path}\n{text}" for path, text in adoption.texts.items()), end="")
        else:
            for path, outcome in write(repository.root, adoption.texts, force=arguments.force):
                print(f"{path}: {outcome}")
            print("next: read contracts/policy.yaml, commit contracts/ on the base branch, and run")
            print("`fla-bot check` on a branch; drafts show and never block until you enforce them")
    for note in adoption.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    return EXIT_OK


def _explain(arguments: argparse.Namespace) -> int:
    from bot.errors import UserError
    from bot.rules import code_of, explain, rules

    if arguments.rule is None:
        for rule in rules():
            code, name = code_of(rule)
            print(f"{code}  {name}")
        return EXIT_OK
    manual = explain(arguments.rule)
    if manual is None:
        raise UserError(f"no rule `{arguments.rule}`; `fla-bot explain` lists them")
    print(manual)
    return EXIT_OK


def _contract_validate(arguments: argparse.Namespace) -> int:
    from bot.errors import UserError
    from bot.validation import validate

    faults: list[Fault] = []
    for path in arguments.files:
        checked = validate(path)
        faults += checked.faults
        print(f"{path}: {'faults, see below' if checked.faults else 'ok'}")
        for note in checked.notes:
            print(f"  {printable(note)}")
    sys.stdout.flush()  # before the faults, which go elsewhere
    if faults:
        raise UserError(faults=faults)
    return EXIT_OK


def _load_contract(name: str) -> Contract:
    """A contract from a file, or as `REF:PATH` from a commit of the repository here."""
    from bot.errors import UserError
    from bot.validation import read_contract

    path = Path(name)
    ref, colon, inside = name.partition(":")
    try:
        if not colon or path.exists():
            return read_contract(path, path.read_bytes())
    except OSError as error:
        raise UserError(f"{name}: {error.strerror or error}") from error
    from bot.change import Repository

    with Repository(Path()) as repository:
        text = repository.read_path(repository.commit(ref, name), inside)
        if text is None:
            raise UserError(f"{name}: {ref} has no file {inside}; paths start at the root")
        return read_contract(repository.root / inside, text)


def _contract_show(arguments: argparse.Namespace) -> int:
    from bot.report.contract import describe

    with contextlib.suppress(BrokenPipeError):
        print(describe(_load_contract(arguments.file)), flush=True)
        return EXIT_OK
    _close_stdout()
    return EXIT_OK


def _contract_diff(arguments: argparse.Namespace) -> int:
    from bot.amendment import edits
    from bot.report.contract import sentences

    found = edits(_load_contract(arguments.before), _load_contract(arguments.after))
    for kind, text in sentences(found):
        print(f"{kind:<8} {printable(text)}")
    if not found:
        print("no difference")
    return EXIT_RED if any(edit.kind == "weaker" for edit in found) else EXIT_OK


def _contract_anchor(arguments: argparse.Namespace) -> int:
    from bot.anchoring import anchor

    for path in anchor(arguments.repo, arguments.files):
        print(f"anchors: {path}")
    return EXIT_OK


def _contract_new(arguments: argparse.Namespace) -> int:
    from bot.report.contract import template

    print(template(arguments.target), end="")
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


def _github_job(arguments: argparse.Namespace) -> int:
    from bot.github import jobs

    return int(getattr(jobs, arguments.job)(arguments))


def _github_handle(arguments: argparse.Namespace) -> int:
    from bot.github.handle import handle

    with _repository(arguments) as repository:
        writes = handle(repository, arguments.event, arguments.event_name, arguments.evidence)
    for write in writes:
        print(write.model_dump_json(indent=1))
    if not writes:
        print("nothing to write")
    return EXIT_OK
