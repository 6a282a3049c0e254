"""`config init`: ask for each value, check it with the tracker and AWS, then write."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from benchmark_runner.terminal import safe
from valkyrie import secrets
from valkyrie.aws.s3 import S3Artifacts
from valkyrie.aws.session import AwsAccess, AwsSession
from valkyrie.cli.options import verb
from valkyrie.cli.output import Output
from valkyrie.config.schema import AWS_KEYS, MODES
from valkyrie.config.values import Key, Value, change, config_path, find_key, load, masked, secrets_path
from valkyrie.domain import Json
from valkyrie.errors import MissingSecretError, UsageError, UserError, ValkyrieError
from valkyrie.tenants.organisation import (
    as_keys,
    chosen_in_environment,
    configured_keys,
    keep_keys,
    own_session,
    secrets_manager,
)

Check = Callable[[str], str | None]
"""Raises ValkyrieError when the value is no good; may say something about it."""

FILE, TYPED = "config file", "typed"


@dataclass(frozen=True, slots=True)
class ConfigAnswer:
    """A value, and where it was found."""

    key: Key
    value: Value
    source: str

    @property
    def shown(self) -> str:
        """As it may be printed."""
        return masked(str(self.value)) if self.key.secret else safe(self.value)


@dataclass(frozen=True, slots=True)
class ConfigQuestion:
    """What is wanted, and how a person is asked for it."""

    name: str
    words: str
    """What it is, for the prompt."""
    required: bool = True
    check: Check | None = None
    kept: bool = True
    """What the config file says counts: not when it was said of another mode."""
    env: str | None = None
    """Environment variable to look at, where that is not the key's own."""


class Asker:
    """Asks one question after another; with nobody to ask, notes what is missing and checks at the end."""

    def __init__(self, output: Output, *, interactive: bool) -> None:
        self.answers: dict[str, ConfigAnswer] = {}
        self.interactive = interactive
        self._output = output
        self._held = load()
        self._missing: list[ConfigQuestion] = []
        self._unchecked: list[tuple[ConfigQuestion, list[ConfigAnswer]]] = []
        self._noted: set[str] = set()

    def ask(self, question: ConfigQuestion, *, again: bool = False) -> Value | None:
        """The value; None when there is none and none is required. `again`: what was found was no good."""
        found = [] if again else self._found(question)
        if not self.interactive:
            if found:
                self._unchecked.append((question, found))
            elif question.required:
                self._missing.append(question)
        answer = self._until_good(question, found) if self.interactive else next(iter(found), None)
        if answer is None:
            self.answers.pop(question.name, None)
            return None
        self.answers[question.name] = answer
        if self.interactive:
            self.say(answer)
        return answer.value

    def finds(self, question: ConfigQuestion) -> bool:
        """Whether nobody would have to be asked."""
        return bool(self._found(question))

    def finish(self) -> None:
        """With nobody to ask: one error for all that is missing, then every check."""
        if self._missing:
            wanted = "\n".join(f"  {one.name}: {_ways(one)}" for one in self._missing)
            raise UsageError(f"Nothing was written; these values are missing:\n{wanted}")
        for question, (*others, last) in self._unchecked:
            answer, said = next(self._good(question, others), (last, None))
            if answer is last and question.check:
                said = question.check(str(last.value))
            self.answers[question.name] = answer
            self.say(answer, said)

    def _found(self, question: ConfigQuestion) -> list[ConfigAnswer]:
        """What the config file and the environment say, where they differ both."""
        key = find_key(question.name)
        variable = question.env or key.env
        given = os.environ.get(variable) if variable else None
        found = []
        if question.kept and key.name in self._held:
            found.append(ConfigAnswer(key, self._held[key.name], FILE))
            if not given or given == str(self._held[key.name]):
                return found
            self._note_once(
                f"Note: {variable} in the environment differs from {key.name} in the config file. "
                "Other commands use the environment's."
            )
        if not given:
            return found
        try:
            return [*found, ConfigAnswer(key, key.parse(given), f"environment: {variable}")]
        except ValueError as error:
            raise UsageError(f"Environment variable {variable}: {error}.", cause="config") from None

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._output.note(text)

    def _good(
        self, question: ConfigQuestion, found: list[ConfigAnswer]
    ) -> Iterator[tuple[ConfigAnswer, str | None]]:
        """Those that pass the check, with what it said; why the others do not is told."""
        for answer in found:
            try:
                yield answer, question.check(str(answer.value)) if question.check else None
            except ValkyrieError as error:
                self._output.note(f"{question.name} ({answer.source}): {safe(error)}")

    def _until_good(self, question: ConfigQuestion, found: list[ConfigAnswer]) -> ConfigAnswer | None:
        """What was found, else ask, and again while the answer is no good; an empty one ends it."""
        while True:
            for answer, said in self._good(question, found):
                if said:
                    self._output.line(f"  {said}")
                return answer
            typed = self._typed(question)
            if typed is None:
                return None
            found = [typed]

    def _typed(self, question: ConfigQuestion) -> ConfigAnswer | None:
        key = find_key(question.name)
        nothing = "" if question.required else " (empty: none)"
        while True:
            text = str(
                click.prompt(
                    f"{question.words}{nothing}",
                    default="",
                    show_default=False,
                    hide_input=key.secret,
                    err=True,
                )
            ).strip()
            if not text and question.required:
                raise click.ClickException(f"{question.name} is needed; nothing was written.")
            if not text:
                return None
            try:
                return ConfigAnswer(key, key.parse(text), TYPED)
            except ValueError as error:
                self._output.note(f"{error}.")

    def say(self, answer: ConfigAnswer, said: str | None = None) -> None:
        """Print where a value came from, and what its check found."""
        self._output.line(f"  {answer.key.name} = {answer.shown}  ({answer.source})")
        if said:
            self._output.line(f"  {said}")


def _ways(question: ConfigQuestion) -> str:
    variable = question.env or find_key(question.name).env
    config = f"`valk config set {question.name}`"
    return f"export {variable}=…, or {config}" if variable else config


# What `config init` asks of a tracker and of AWS before anything is written.

TIMEOUT_S = 10.0
ORGANISATION = "/v1/organisation"


def check_tracker(url: str) -> str:
    """A tracker answers there; what it says of itself."""
    health = _asked(url, None, "GET", "/health")
    if not isinstance(health, dict) or health.get("status") != "ok":
        raise UserError(f"What answers at {url} is no tracker, or one that is not well.")
    return f"it answers: version {str(health.get('version'))[:40]}"


def whoami(url: str, key: str | None) -> Json:
    """Whom a tracker takes us for."""
    return _object(url, _asked(url, key, "GET", "/v1/me"))


def is_open(url: str) -> bool:
    """Whether a tracker asks for no key."""
    try:
        whoami(url, None)
    except ValkyrieError:
        return False
    return True


def check_tracker_key(url: str, key: str) -> str:
    """The tracker knows this key; whom it takes us for."""
    me = whoami(url, key)
    if me.get("mode") == "hosted":
        raise UserError(f"The tracker at {url} is hosted: valk config init --mode hosted")
    return f"it is accepted: {str(me.get('person'))[:200]} of organisation {str(me.get('org'))[:200]}"


def join(url: str, key: str) -> str:
    """The hosted tracker knows this key, and its organisation from now on."""
    try:
        joined = _object(url, _asked(url, key, "POST", "/v1/init"))
    except UsageError:
        raise UserError(f"The tracker at {url} is self-hosted: valk config init --mode self-hosted") from None
    verb = "was made" if joined.get("created") else "is known"
    return f"it is accepted: organisation {str(joined.get('org_name'))[:200]} {verb}"


def organisation(url: str, key: str) -> Json:
    """The organisation's own settings."""
    return _object(url, _asked(url, key, "GET", ORGANISATION))


def change_organisation(url: str, key: str, changes: Mapping[str, object]) -> None:
    """Change settings of the organisation; the tracker asks AWS first."""
    _asked(url, key, "PATCH", ORGANISATION, dict(changes))


def send_credentials(url: str, key: str, keys: Mapping[str, str]) -> None:
    """Give the organisation AWS keys to keep, once."""
    body = {name.lower(): value for name, value in keys.items()}
    _asked(url, key, "PUT", f"{ORGANISATION}/credentials", body)


def aws_session(region: str, keys: Mapping[str, str]) -> AwsSession:
    """The way into AWS that is about to be configured."""
    return AwsSession(AwsAccess(region=region, keys=as_keys(keys) if keys else None))


def check_bucket(bucket: str, session: AwsSession) -> str:
    """Objects can be written to the bucket, read and removed."""
    S3Artifacts(session, bucket, patience=5).check()
    return f"s3://{bucket} can be written"


def check_secret(name: str, session: AwsSession | None) -> str:
    """The secret has a value in one of the places runs of this machine look."""
    sources = secrets.default_sources(secrets.SecretStore(secrets_path()))
    if session:
        sources.append(secrets_manager(session, sources))
    try:
        secrets.resolve({name: name}, sources)
    except MissingSecretError:
        raise UserError(f"No secret is called {name!r}: valk secret set {name}") from None
    return f"the secret {name} is there"


def _asked(url: str, key: str | None, method: str, path: str, body: Any = None) -> Any:
    from valkyrie.client.connection import Connection, SilenceLimits, TrackerCall

    async def ask() -> Any:
        connection = Connection(url, key, timeout=TIMEOUT_S, limits=SilenceLimits.within(2))
        try:
            return await connection.ask(TrackerCall(method, path, body=body))
        finally:
            await connection.close()

    return asyncio.run(ask())


def _object(url: str, answer: Any) -> Json:
    if not isinstance(answer, dict):
        raise UserError(f"What answers at {url} is no tracker of this version.")
    return answer


# `config init`.

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
    asker.ask(ConfigQuestion("webhook", words, required=False, check=check))


def _ask_bucket(output: Output, asker: Asker) -> None:
    """Bucket, region and credentials are checked together, and asked for again together."""
    words = "S3 bucket for agents and artifacts"
    check = partial(_check_bucket, asker)
    again = False
    while asker.ask(
        ConfigQuestion("S3_BUCKET", words, required=False, check=None if asker.interactive else check),
        again=again,
    ):
        spoken = [name for name in ("AWS_DEFAULT_REGION", "AWS_REGION") if os.environ.get(name)]
        asker.ask(
            ConfigQuestion("AWS_DEFAULT_REGION", "AWS region", env=next(iter(spoken), None)), again=again
        )
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
    if variable := chosen_in_environment():
        output.line(f"  AWS credentials: those of the environment ({variable}); they are not kept.")
    elif not configured_keys() and asker.interactive:
        _ask_keys(asker, required=False)


def _ask_keys(asker: Asker, *, required: bool) -> None:
    words = "AWS access key id" if required else "AWS access key id, if not what the AWS command line uses"
    if asker.ask(ConfigQuestion("AWS_ACCESS_KEY_ID", words, required=required)):
        asker.ask(ConfigQuestion("AWS_SECRET_ACCESS_KEY", "AWS secret access key"))
        asker.ask(ConfigQuestion("AWS_SESSION_TOKEN", "AWS session token", required=False))


def _check_bucket(asker: Asker, bucket: str) -> str:
    return check_bucket(bucket, _session(asker))


def _check_secret(asker: Asker, name: str) -> str:
    return check_secret(name, _session(asker) if "S3_BUCKET" in asker.answers else own_session())


def _session(asker: Asker) -> AwsSession:
    kept = {} if chosen_in_environment() else configured_keys()
    return aws_session(str(asker.answers["AWS_DEFAULT_REGION"].value), _keys(asker) or kept)


def _keys(asker: Asker) -> Mapping[str, str]:
    return {name: str(asker.answers[name].value) for name in AWS_KEYS if name in asker.answers}


def _ask_tracker(asker: Asker, mode: str, *, same: bool) -> None:
    address = ConfigQuestion("tracker_url", "Address of the tracker", check=check_tracker, kept=same)
    url = asker.ask(address)

    def check_key(key: str) -> str:
        at = str(asker.answers["tracker_url"].value)
        return join(at, key) if mode == "hosted" else check_tracker_key(at, key)

    key = ConfigQuestion("api_key", "API key", check=check_key, kept=same)
    if mode == "self-hosted" and url and not asker.finds(key) and is_open(str(url)):
        return
    asker.ask(key)


def _give_aws(output: Output, asker: Asker, way: str | None, *, interactive: bool) -> None:
    """Tell the hosted tracker how it may use AWS for the organisation; it keeps that, we do not."""
    url, key = (str(asker.answers[name].value) for name in _OF_TRACKERS)
    now = organisation(url, key)
    if way is None and interactive and not (now.get("role_arn") or now.get("credentials")):
        output.line("Artifacts, logs and secrets can be in your own AWS: by a role (best), or by keys.")
        choice = click.Choice(["role", "keys", "none"])
        way = str(click.prompt("AWS", type=choice, default="none", err=True))
    if way in (None, "none"):
        return
    theirs = Asker(output, interactive=interactive)
    changes: dict[str, object] = {}
    theirs.ask(ConfigQuestion("AWS_DEFAULT_REGION", "AWS region"))
    theirs.ask(ConfigQuestion("S3_BUCKET", "S3 bucket for agents and artifacts", required=False))
    if way == "keys":
        _ask_keys(theirs, required=True)
    else:
        changes["role_arn"] = _role(output, str(now["external_id"]), interactive=interactive)
    theirs.finish()
    changes["aws_region"] = theirs.answers["AWS_DEFAULT_REGION"].value
    if way == "keys":
        change_organisation(url, key, changes)
        send_credentials(url, key, _keys(theirs))
    if bucket := theirs.answers.get("S3_BUCKET"):
        changes["s3_bucket"] = bucket.value
    change_organisation(url, key, changes)
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
    held = load()
    values = {name: answer.value for name, answer in asker.answers.items() if name not in AWS_KEYS}
    gone = {name: None for name in _OF_TRACKERS if name in held and name not in values}
    keys = _keys(asker)
    undo = keep_keys(keys) if keys else None
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
