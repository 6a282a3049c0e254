"""`config init`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import click

from valkyrie.cli.config import joining
from valkyrie.cli.config.asking import Asker, Question
from valkyrie.cli.options import verb
from valkyrie.cli.output import Output
from valkyrie.config_keys import AWS_KEYS, MODES
from valkyrie.errors import ValkyrieError
from valkyrie.report.formats import safe
from valkyrie.settings import config_path

if TYPE_CHECKING:
    from valkyrie.aws.session import AwsSession

_WHERE = {
    "local": "everything on this machine; S3 and CloudWatch if you like",
    "self-hosted": "a tracker your team runs",
    "hosted": "a tracker someone else runs for you",
}
_OF_TRACKERS = ("tracker_url", "api_key")


@verb(
    "init",
    examples="valk config init\nvalk config init --mode local --yes\n"
    "TRACKER_SERVICE_URL=https://tracker.example.com valk config init --mode self-hosted",
)
@click.option("--mode", type=click.Choice(MODES), help="How Valkyrie is used here; asked for when left out.")
@click.option(
    "--aws",
    type=click.Choice(["role", "keys", "none"]),
    help="Hosted mode: give the organisation a way into AWS, by a role or by keys.",
)
@click.option("--yes", "-y", is_flag=True, help="Ask nothing: take what config and environment say.")
def init(output: Output, *, mode: str | None, aws: str | None, yes: bool) -> None:
    """Set this machine up, value by value.

    Modes: local (everything here), self-hosted (a tracker your team runs), hosted (one that is run for you).
    Each value comes from the config file, else the environment, else you; where it came from is printed, and
    it is checked before it is kept: the tracker answers, the key is accepted, the bucket can be written. A
    value of the file that is no longer good gives way to the environment's. Everything is written at the end,
    or nothing is. Where nobody can be asked, what is missing is listed
    (exit 2).
    """
    from valkyrie.config import load

    interactive = output.interactive and not yes
    before = load().get("mode")
    mode = mode or (_asked_mode(output, before) if interactive else _unasked_mode(output, before))
    asker = Asker(output, interactive=interactive)
    output.line(f"Mode {mode}: {_WHERE[mode]}.")
    if mode == "local":
        _ask_local(output, asker)
    else:
        _ask_tracker(asker, mode, same=before in (None, mode))
    asker.finish()
    if mode == "hosted":
        _give_aws(output, asker, aws, interactive=interactive)
    _write(asker, mode)
    _report(output, asker, mode)


def _unasked_mode(output: Output, before: object) -> str:
    """The mode where nobody can be asked: as it was, else local, unless the environment says otherwise."""
    if before:
        return str(before)
    if os.environ.get("TRACKER_SERVICE_URL"):
        raise click.UsageError(
            "TRACKER_SERVICE_URL names a tracker, and nobody can be asked what it is: say --mode self-hosted "
            "or --mode hosted; --mode local does without it. Nothing was written."
        )
    output.note("Note: nobody can be asked here, so the mode is local; --mode says another.")
    return MODES[0]


def _asked_mode(output: Output, before: object) -> str:
    for name, what in _WHERE.items():
        output.line(f"  {name:<12} {what}")
    return str(click.prompt("Mode", type=click.Choice(MODES), default=str(before or MODES[0]), err=True))


def _ask_local(output: Output, asker: Asker) -> None:
    _ask_bucket(output, asker)
    words = "Name of the secret with the Slack webhook URL"
    check = partial(_check_secret, asker)
    asker.ask(Question("webhook", words, required=False, check=check))


def _ask_bucket(output: Output, asker: Asker) -> None:
    """Bucket, region and credentials are checked together, and asked for again together."""
    words = "S3 bucket for agents and artifacts"
    check = partial(_check_bucket, asker)
    again = False
    while asker.ask(
        Question("S3_BUCKET", words, required=False, check=None if asker.interactive else check), again=again
    ):
        spoken = [name for name in ("AWS_DEFAULT_REGION", "AWS_REGION") if os.environ.get(name)]
        asker.ask(Question("AWS_DEFAULT_REGION", "AWS region", env=next(iter(spoken), None)), again=again)
        _ask_own_keys(output, asker)
        if not asker.interactive:
            return
        try:
            output.line(f"  {check(str(asker.answers['S3_BUCKET'].value))}")
            return
        except ValkyrieError as error:
            output.note(safe(error))
            again = True
    for name in ("AWS_DEFAULT_REGION", *AWS_KEYS):
        asker.answers.pop(name, None)


def _ask_own_keys(output: Output, asker: Asker) -> None:
    """Keys are asked for only where AWS's own programs would find none: what those find is not copied."""
    from valkyrie.organisation.own_aws import chosen_in_environment, configured_keys

    if variable := chosen_in_environment():
        output.line(f"  AWS credentials: those of the environment ({variable}); they are not kept.")
    elif not configured_keys() and asker.interactive:
        _ask_keys(asker, required=False)


def _ask_keys(asker: Asker, *, required: bool) -> None:
    words = "AWS access key id" if required else "AWS access key id, if not what the AWS command line uses"
    if asker.ask(Question("AWS_ACCESS_KEY_ID", words, required=required)):
        asker.ask(Question("AWS_SECRET_ACCESS_KEY", "AWS secret access key"))
        asker.ask(Question("AWS_SESSION_TOKEN", "AWS session token", required=False))


def _check_bucket(asker: Asker, bucket: str) -> str:
    return joining.check_bucket(bucket, _session(asker))


def _check_secret(asker: Asker, name: str) -> str:
    from valkyrie.organisation.own_aws import own_session

    return joining.check_secret(name, _session(asker) if "S3_BUCKET" in asker.answers else own_session())


def _session(asker: Asker) -> AwsSession:
    from valkyrie.organisation.own_aws import chosen_in_environment, configured_keys

    kept = {} if chosen_in_environment() else configured_keys()
    return joining.aws_session(str(asker.answers["AWS_DEFAULT_REGION"].value), _keys(asker) or kept)


def _keys(asker: Asker) -> Mapping[str, str]:
    return {name: str(asker.answers[name].value) for name in AWS_KEYS if name in asker.answers}


def _ask_tracker(asker: Asker, mode: str, *, same: bool) -> None:
    address = Question("tracker_url", "Address of the tracker", check=joining.check_tracker, kept=same)
    url = asker.ask(address)

    def check_key(key: str) -> str:
        at = str(asker.answers["tracker_url"].value)
        return joining.join(at, key) if mode == "hosted" else joining.check_key(at, key)

    key = Question("api_key", "API key", check=check_key, kept=same)
    if mode == "self-hosted" and url and not asker.finds(key) and joining.is_open(str(url)):
        return
    asker.ask(key)


def _give_aws(output: Output, asker: Asker, way: str | None, *, interactive: bool) -> None:
    """Tell the hosted tracker how it may use AWS for the organisation; it keeps that, we do not."""
    url, key = (str(asker.answers[name].value) for name in _OF_TRACKERS)
    now = joining.organisation(url, key)
    if way is None and interactive and not (now.get("role_arn") or now.get("credentials")):
        output.line("Artifacts, logs and secrets can be in your own AWS: by a role (best), or by keys.")
        choice = click.Choice(["role", "keys", "none"])
        way = str(click.prompt("AWS", type=choice, default="none", err=True))
    if way in (None, "none"):
        return
    theirs = Asker(output, interactive=interactive)
    changes: dict[str, object] = {}
    theirs.ask(Question("AWS_DEFAULT_REGION", "AWS region"))
    theirs.ask(Question("S3_BUCKET", "S3 bucket for agents and artifacts", required=False))
    if way == "keys":
        _ask_keys(theirs, required=True)
    else:
        changes["role_arn"] = _role(output, str(now["external_id"]), interactive=interactive)
    theirs.finish()
    changes["aws_region"] = theirs.answers["AWS_DEFAULT_REGION"].value
    if way == "keys":
        joining.change_organisation(url, key, changes)
        joining.send_credentials(url, key, _keys(theirs))
    if bucket := theirs.answers.get("S3_BUCKET"):
        changes["s3_bucket"] = bucket.value
    joining.change_organisation(url, key, changes)
    output.line("  The tracker has asked AWS: it works.")


def _role(output: Output, external_id: str, *, interactive: bool) -> str:
    output.line(f"  The role's trust policy must ask for this external id: {external_id}")
    role = os.environ.get("VALKYRIE_ROLE_ARN", "")
    if not role and interactive:
        role = str(click.prompt("ARN of the role", default="", show_default=False, err=True))
    if not role.strip():
        raise click.UsageError("No role was named (VALKYRIE_ROLE_ARN); nothing was written.")
    return role.strip()


def _write(asker: Asker, mode: str) -> None:
    """Config file and AWS keys, both or neither."""
    from valkyrie.config import change, load
    from valkyrie.organisation import own_aws

    held = load()
    values = {name: answer.value for name, answer in asker.answers.items() if name not in AWS_KEYS}
    gone = {name: None for name in _OF_TRACKERS if name in held and name not in values}
    keys = _keys(asker)
    undo = own_aws.keep_keys(keys) if keys else None
    try:
        change({"mode": mode, **values, **gone})
    except BaseException:
        if undo:
            undo()
        raise


def _report(output: Output, asker: Asker, mode: str) -> None:
    found = [
        {"key": answer.key.name, "value": answer.shown, "source": answer.source}
        for answer in asker.answers.values()
    ]
    output.emit("config_init", mode=mode, values=found, path=str(config_path()))
    output.line(f"Written to {config_path()}.")
    if mode == "local" and os.environ.get("TRACKER_SERVICE_URL"):
        output.note(
            "Note: TRACKER_SERVICE_URL in the environment still names a tracker, which is used instead."
        )
    rows = [("What is in force", "valk config list"), ("A first run", "valk demo")]
    if mode != "local":
        rows = [("Agents of the tracker", "valk agent list"), ("Its runs", "valk run list")]
    output.panel("Next", rows)
