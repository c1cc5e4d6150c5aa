"""Command-line verb that takes pages back from a pretraining run: forget."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from trainrig import command_line, storage
from trainrig.command_line import Instance, Json, Search, argument, flag, option
from trainrig.errors import ConfigError
from trainrig.report.number_formats import format_count, format_duration, format_short

if TYPE_CHECKING:
    from trainrig.attribution.forgetting.forget_plan import ForgetPlan, LearnedPage

MOST_SHOWN = 20  # pages that the plan lists; JSON has all

Run = Annotated[
    str,
    argument(
        "RUN",
        help="Folder of a finished run of `pretrain` or `rl`; with --check, of one without pages.",
        autocompletion=command_line.run_files,
    ),
]
UrlFiles = Annotated[
    list[str] | None,
    option(
        "FILE",
        help="File with the URL of a page to take back on each line; repeatable.  [default: none]",
    ),
]
DocumentFiles = Annotated[
    list[str] | None,
    option(
        "FILE",
        help="File with the id of a document to take back on each line; repeatable.  "
        "[default: none]",
    ),
]
Out = Annotated[
    str | None,
    option("DIR", help="Run folder to write; must be new, or of this command.  [default: none]"),
]
NearDuplicates = Annotated[
    str | None,
    option(
        "DIR",
        help="Folder of `curate` that the tokens were made of: take back the near-duplicates that "
        "it found of the pages too.  [default: none]",
    ),
]
PlanOnly = Annotated[bool, flag("--plan", help="Show what would be done and its cost; do nothing.")]
Yes = Annotated[
    bool, flag("--yes", help="Train from the beginning if no checkpoint is from before the pages.")
]
Children = Annotated[
    bool,
    flag(
        "--children",
        help="Make the runs of `posttrain` again that started from RUN, in DIR-children.",
    ),
]
NewWorkers = Annotated[
    int | None, option("N", help="Number of workers.  [default: as in RUN]", min=1)
]
Check = Annotated[bool, flag("--check", help="Check the certificate in RUN instead.")]
Against = Annotated[
    str | None,
    option(
        "DIR", help="With --check: run or checkpoint whose tensors must be equal.  [default: none]"
    ),
]

Key = Annotated[
    str | None,
    option(
        "FILE",
        help="Ed25519 key of SSH that signs the certificate; with --check, the public key that "
        "must have signed it.  [default: none]",
    ),
]


def forget(
    run: Run,
    urls: UrlFiles = None,
    documents: DocumentFiles = None,
    near_duplicates: NearDuplicates = None,
    out: Out = None,
    plan: PlanOnly = False,
    yes: Yes = False,
    children: Children = False,
    workers: NewWorkers = None,
    instance: Instance = None,
    search: Search = None,
    check: Check = False,
    against: Against = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Take pages back from a run: train it again from before their first use.

    RUN is of `pretrain`, or of `rl`, whose prompts are the pages. The new run equals, byte for
    byte, a run that had the pages masked from its beginning. RUN is not changed. Run the same
    command again to continue after a stop.
    """
    if check:
        given = {
            "--urls": urls,
            "--documents": documents,
            "--near-duplicates": near_duplicates,
            "--out": out,
            "--plan": plan,
            "--children": children,
        }
        if unused := [name for name, value in given.items() if value]:
            raise ConfigError(f"forget --check: does not use {', '.join(unused)}; leave it out")
        _check(run, against, key, as_json)
        return
    if against is not None:
        raise ConfigError("forget --against: needs --check; add it")
    if not urls and not documents:
        raise ConfigError("forget: name the pages by --urls FILE or --documents FILE")
    if out is None and not plan:
        raise ConfigError("forget: name the run folder to write by --out DIR, or give --plan")
    if plan and key is not None:
        raise ConfigError("forget --key: --plan writes no certificate to sign; leave one out")
    from trainrig.attribution.forgetting.forget_plan import plan_forgetting
    from trainrig.attribution.forgetting.requested_pages import read_request

    if key is not None:
        from trainrig.attribution.forgetting.certificate_signature import sign

        sign(b"", key)  # a key that cannot sign is refused before training, not after it
    from trainrig.attribution.forgetting.forget_prompts import is_reinforcement, plan_prompts

    request = read_request(urls or (), documents or ())
    folder = storage.make_absolute(run.rstrip("/"))
    of_prompts = is_reinforcement(folder)
    if of_prompts and near_duplicates is not None:
        raise ConfigError(
            f"forget --near-duplicates: {folder} is a run of `rl`, whose prompts `curate` did not "
            "compare; leave it out"
        )
    if near_duplicates is not None:
        from trainrig.attribution.forgetting.copied_pages import add_copies
        from trainrig.attribution.forgetting.forget_plan import list_token_inputs

        request = add_copies(request, near_duplicates, list_token_inputs(run))
    make_plan = plan_prompts if of_prompts else plan_forgetting
    found = make_plan(folder, request, instance, search or (), out)
    if plan or not found.pages:
        print(json.dumps(found.to_json()) if as_json else "\n".join(describe_plan(found)))
        return
    assert out is not None
    if found.start is None and not yes:
        raise ConfigError(
            f"{found.run}: no whole checkpoint is from before update {found.first_update}, the "
            f"first that learned from a page, so all {found.replay.last:,} updates are made again "
            f"({describe_cost(found)}); add --yes to do that"
        )
    if not as_json:
        print("\n".join(describe_plan(found)), flush=True)
    _take_back(found, out, workers, children, key, as_json)


def _take_back(
    plan: "ForgetPlan",
    out: str,
    workers: int | None,
    children: bool,
    key: str | None,
    as_json: bool,
) -> None:
    """Train the run of `plan`, and print the path of its certificate, or the certificate."""
    from trainrig.attribution.forgetting.forget_stage import CERTIFICATE, take_back

    certificate = take_back(plan, out, workers, children, key)
    written = f"{certificate.run}/{CERTIFICATE}"
    if as_json:
        print(json.dumps({**certificate.model_dump(mode="json"), "certificate": written}))
    else:
        print(written)


def _check(run: str, against: str | None, key: str | None, as_json: bool) -> None:
    from trainrig.attribution.forgetting.forget_stage import check_certificate

    lines = list(check_certificate(run, against, key))
    print(json.dumps({"run": run, "checks": lines}) if as_json else "\n".join(lines))


def describe_plan(plan: "ForgetPlan") -> Iterator[str]:
    """Yield the lines of a plan: pages, updates, checkpoint, cost and runs that started from it."""
    for unused in plan.unused:
        found = "" if unused.copy_of else "nothing to take back; "
        yield f"{unused.name}: {found}{unused.reason}"
    if not plan.pages:
        yield "nothing is done"
        return
    for page in plan.pages[:MOST_SHOWN]:
        yield _describe_page(page)
    if len(plan.pages) > MOST_SHOWN:
        yield f"and {format_count(len(plan.pages) - MOST_SHOWN, 'document')} more"
    if plan.unknown_base:
        yield f"initial weights: {plan.unknown_base}; their training data is unknown"
    learned = ", ".join(f"{step:,}" for step in plan.checkpoints) or "none"
    yield f"checkpoints that learned from them: {learned}"
    replay = plan.replay
    if plan.start:
        yield f"newest checkpoint from before them: {plan.start.checkpoint}"
    else:
        yield "newest checkpoint from before them: none; the replay starts at the beginning"
    yield f"updates to make again: {replay.first:,} to {replay.last:,}, {describe_cost(plan)}"
    for child in plan.children:
        done = child.left_to_user or "made again by --children"
        yield f"{child.folder}: `{child.verb}` from step {child.step:,} of {child.parent}; {done}"


def _describe_page(page: "LearnedPage") -> str:
    updates = ", ".join(f"{step:,}" for step in page.updates[:10])
    more = ", …" if len(page.updates) > 10 else ""
    tokens = format_count(page.tokens, "token")
    document = page.document
    return f"{document.url or document.id}: {tokens} in {document.source}, updates {updates}{more}"


def describe_cost(plan: "ForgetPlan") -> str:
    """Describe the tokens, hours and money of the updates to make again."""
    replay = plan.replay
    tokens = format_short(replay.tokens).replace("\u00a0", " ")
    hours = format_duration(replay.worker_hours * 3600).replace("\u00a0", " ")
    price = ""
    if replay.usd is not None:
        price = f", {replay.usd:,.2f} USD" if replay.usd >= 0.01 else ", less than 0.01 USD"
    return f"about {tokens} tokens and {hours} of one worker{price}"
