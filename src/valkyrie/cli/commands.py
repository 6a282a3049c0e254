"""Every command: where it is and one line about it; groups that load a command when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click


class Verb(NamedTuple):
    """A command, loaded when it is called."""

    where: str
    """`module:attribute`."""
    summary: str
    aliases: tuple[str, ...] = ()
    """Other words for it, which work and are not shown."""
    hidden: bool = False
    """Works, and is not shown: another command does the same."""


class Noun(NamedTuple):
    """A group of verbs about one thing, perhaps with smaller things in it."""

    summary: str
    verbs: Mapping[str, Verb | Noun]
    aliases: tuple[str, ...] = ()
    """Other words for it."""


SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "fetch": ("status", "info", "get", "describe", "inspect", "view", "score"),
    "show": ("info", "get", "describe", "inspect", "view"),
    "list": ("ls", "ps"),
    "remove": ("rm", "delete", "del", "forget", "unset"),
    "delete": ("rm", "remove", "del", "forget"),
    "stop": ("kill", "abort", "end"),
    "start": ("launch", "create", "new", "submit"),
    "create": ("new", "add", "make"),
    "init": ("new", "create"),
    "set": ("put", "store"),
    "logs": ("log",),
    "results": ("result",),
    "tasks": ("trials", "task", "trial"),
    "errors": ("failures", "error"),
    "lint": ("validate",),
    "resume": ("continue",),
    "revoke": ("delete", "remove"),
    "serve": ("server",),
    "compare": ("diff",),
}
"""By command: words that other programs have for the same thing. Offered, never taken for it."""


def real_name(table: Mapping[str, Verb | Noun], word: str) -> str:
    """The name in the table that `word` stands for; `word` itself where it is no alias."""
    if word in table:
        return word
    return next((name for name, entry in table.items() if word in entry.aliases), word)


def meant(table: Mapping[str, Verb | Noun], word: str) -> str | None:
    """Return the shown command that means what `word` says elsewhere, or None."""
    shown = [name for name, entry in table.items() if not is_hidden(entry)]
    return next((name for name in shown if word.lower() in SYNONYMS.get(name, ())), None)


def is_hidden(entry: Verb | Noun) -> bool:
    """Whether the help leaves it out."""
    return isinstance(entry, Verb) and entry.hidden


def _verb(where: str, summary: str, *aliases: str, hidden: bool = False) -> Verb:
    return Verb(f"valkyrie.cli.{where}", summary, aliases, hidden)


RUN = Noun(
    "Start runs, watch them, take their results.",
    {
        "start": _verb("run_start:start", "Start a run: one agent on one benchmark.", "run"),
        "fetch": _verb("run:fetch", "Show a run as it stands, or watch it live.", "summary"),
        "list": _verb("run:list_runs", "List runs, newest first."),
        "wait": _verb("run_watch:wait", "Block until a run ended; the exit code says how."),
        "watch": _verb("run_watch:watch_command", "Same as `run wait --connect`.", hidden=True),
        "stop": _verb("run_control:stop", "Stop a run; trials under way finish unless forced.", "cancel"),
        "resume": _verb("run_control:resume", "Go on with what was stopped or interrupted."),
        "retry": _verb("run_control:retry", "Run errored (and stopped) trials again."),
        "regrade": _verb("run_control:regrade", "Grade kept work again, with other tests or another judge."),
        "update": _verb("run_control:update", "Change a run's concurrency, label, priority or limits."),
        "results": _verb("run_outputs:results", "Write a run's results file."),
        "outputs": _verb("run_outputs:outputs", "Copy what agents left behind to a folder."),
        "errors": _verb("run_trials:errors", "Show a run's open errors, grouped."),
        "tasks": _verb("run_trials:tasks", "List a run's trials."),
        "show": _verb("run_trials:show", "Show a trial to read: instruction, steps, verdict and evidence."),
        "logs": _verb("run_outputs:logs", "Print logs: of one trial's attempt, or of a whole run."),
        "debug": _verb("run_trials:debug", "Open a shell in a kept sandbox."),
        "delete": _verb(
            "run_control:delete", "Forget an ended run, or all that are old, and all that was kept of them."
        ),
    },
)
BENCHMARK_JOB = Noun(
    "Compare agents: many runs as one job.",
    {
        "start": _verb("job_control:start", "Start a job: agents × tasks × trials, side by side.", "run"),
        "fetch": _verb("job_status:fetch", "Show who won: the table, intervals, comparisons.", "summary"),
        "list": _verb("job:list_jobs", "List jobs, newest first."),
        "wait": _verb("job_status:wait", "Block until a job ended; the exit code says how."),
        "watch": _verb("job_status:watch", "Same as `job wait --connect`.", hidden=True),
        "results": _verb("job_outputs:results", "Write the results of a job's runs to one file."),
        "logs": _verb("job_outputs:logs", "Write a job's logs and kept files to a folder."),
        "stop": _verb("job_control:stop", "Stop a job; trials under way finish unless forced.", "cancel"),
        "resume": _verb("job_control:resume", "Go on, perhaps with more agents, tasks or trials."),
        "retry": _verb("job_control:retry", "Run errored (and stopped) trials again."),
        "delete": _verb("job_control:delete", "Forget an ended job, its runs and all that was kept."),
    },
    aliases=("job", "bmj"),
)
BENCHMARK = Noun(
    "See which benchmarks there are, add one, make one.",
    {
        "list": _verb("benchmark:list_benchmarks", "List the benchmarks that can be named."),
        "tasks": _verb("benchmark:tasks", "List the task ids of a benchmark."),
        "check": _verb("benchmark:check", "Check what a benchmark's tasks are open to."),
        "init": _verb("benchmark:init", "Write a new benchmark with one valid task."),
        "add": _verb("benchmark:add", "Add a public benchmark by its name."),
        "remove": _verb("benchmark:remove", "Forget a benchmark that was added."),
    },
)
AGENT = Noun(
    "Make agents, push them to the library.",
    {
        "init": _verb("agent:init", "Write a new agent with a valid contract."),
        "push": _verb("agent:push", "Take an agent's folder into the library."),
        "install": _verb("agent:install", "Take an agent in from a git repository."),
        "list": _verb("agent:list_agents", "List the pushed agents."),
        "remove": _verb("agent:remove", "Forget a pushed agent; runs keep their own copy."),
        "download": _verb("agent:download", "Unpack a pushed agent into a folder."),
        "catalog": _verb("agent:catalog", "List the agents that are built in."),
        "fetch": _verb("agent:fetch", "Install a catalogue agent ahead of its first run."),
        "layers": _verb("agent:list_layers", "List the catalogue agents that are installed here."),
        "outputs": _verb("agent:outputs", "Same as `run outputs`."),
    },
)
SECRET = Noun(
    "Keep values agents need, such as API keys.",
    {
        "set": _verb("secret:set_secret", "Keep a secret; its value is asked for, never an argument."),
        "list": _verb("secret:list_secrets", "List the names of the secrets kept here."),
        "remove": _verb("secret:remove", "Forget a secret."),
    },
)
CONFIG_SERVICE = Noun(
    "Benchmark services of your own, by name.",
    {
        "set": _verb("config_service:set_service", "Say where the service of a benchmark is."),
        "add": _verb("config_service:add", "Same as `config service set`."),
        "list": _verb("config_service:list_services", "List the services, and whether each answers."),
        "remove": _verb("config_service:remove", "Forget where a service is."),
    },
)
CONFIG_AUTH = Noun(
    "Credentials for benchmark services.",
    {
        "set": _verb("config_service:set_credential", "Keep the credential of a benchmark's service."),
        "list": _verb("config_service:list_credentials", "List the services with a credential, masked."),
        "remove": _verb("config_service:remove_credential", "Forget a credential."),
    },
)
CONFIG_PROVIDER = Noun(
    "Remote sandbox providers, and the default one.",
    {
        "set": _verb("config:set_provider", "Say how to reach a remote sandbox provider."),
        "default": _verb("config:default", "Choose the provider of runs that name none."),
        "list": _verb("config:list_providers", "List the sandbox providers."),
        "remove": _verb("config:remove_provider", "Forget how to reach a provider."),
    },
)
CONFIG = Noun(
    "Read and write the config file.",
    {
        "init": _verb("config_init:init", "Set this machine up, value by value."),
        "set": _verb("config:set_value", "Set one key."),
        "get": _verb("config:get", "Print the value of one key that is in force."),
        "remove": _verb("config:remove", "Remove one key from the file."),
        "list": _verb("config:list_keys", "List every key, its value and where it comes from."),
        "path": _verb("config:path", "Print where the config file is."),
        "service": CONFIG_SERVICE,
        "auth": CONFIG_AUTH,
        "provider": CONFIG_PROVIDER,
    },
)
ADMIN_ORG = Noun(
    "Organisations of a tracker.",
    {
        "create": _verb("admin:create_org", "Make an organisation."),
        "list": _verb("admin:list_orgs", "List the organisations."),
    },
)
ADMIN_KEY = Noun(
    "API keys of a tracker.",
    {
        "create": _verb("admin:create_key", "Make an API key; it is printed once."),
        "list": _verb("admin:list_keys", "List the API keys, never the keys themselves."),
        "revoke": _verb("admin:revoke_key", "Refuse a key from now on."),
    },
)
ADMIN = Noun(
    "For whoever runs a tracker, on its database.",
    {
        "org": ADMIN_ORG,
        "key": ADMIN_KEY,
        "audit": _verb("admin:audit", "Show who did what."),
        "secret-key": _verb("admin:secret_key", "Print a fresh VALKYRIE_SECRET_KEY."),
    },
)
SANDBOX = Noun(
    "Offer this machine's sandboxes to services.",
    {"serve": _verb("sandbox:serve", "Serve sandboxes over Daytona's REST until interrupted.")},
)
QUEUE = Noun(
    "See what waits and who works.",
    {"status": _verb("engine:status", "Show what waits, what runs, and who works.")},
)
DB = Noun(
    "Look after the database.",
    {
        "upgrade": _verb("admin:upgrade", "Bring the database to this program's schema."),
        "current": _verb("admin:current", "Say where the database is and which schema it has."),
        "check": _verb("admin:check", "Look for what is wrong with the database."),
        "compact": _verb("admin:compact", "Give the disk back what deleted runs left in the database."),
    },
)
EXPERIMENT = Noun(
    "Run evals in variants, and see which one is better.",
    {
        "run": _verb("experiment:run", "Run every variant of an experiment file, and compare."),
        "merge": _verb("experiment:merge", "Put shards of an experiment together again."),
    },
)
OPERATORS = ("serve", "executor", "db", "admin", "queue", "sandbox", "disk")
"""Commands for whoever runs a tracker or looks after a machine; they stand apart in the help."""
COMMANDS: dict[str, Verb | Noun] = {
    "run": RUN,
    "benchmark-job": BENCHMARK_JOB,
    "init": _verb("eval:init", "Write a first eval, a skill and a suite."),
    "trust": _verb("trust:trust", "Let a project's own plugins run on this machine."),
    "lint": _verb("lint:lint", "Find what is wrong in specs, skills, tasks and agents."),
    "eval": _verb("eval:eval_command", "Run stimuli against an agent and grade what it did."),
    "grade": _verb(
        "grade:grade", "Grade results from stdin with the graders of an eval spec; no agent runs."
    ),
    "oracle": _verb(
        "grade:oracle",
        "Prepare each stimulus, apply its golden inputs, and grade the result; no agent runs.",
    ),
    "compare": _verb("compare:compare", "Compare agents on the tasks they have in common."),
    "dashboard": _verb("dashboard:dashboard", "Look at runs in a browser, live."),
    "report": _verb("dashboard:report", "Write a run or job as one HTML file to send to others."),
    "experiment": EXPERIMENT,
    "export": _verb("interchange:export", "Write evals or their results in another tool's form."),
    "ingest": _verb("interchange:ingest", "Store results that came about elsewhere."),
    "benchmark": BENCHMARK,
    "agent": AGENT,
    "secret": SECRET,
    "config": CONFIG,
    "admin": ADMIN,
    "sandbox": SANDBOX,
    "queue": QUEUE,
    "serve": _verb("engine:serve", "Serve the tracker to a team over HTTP."),
    "executor": _verb("engine:executor", "Work off the runs of a tracker's database."),
    "db": DB,
    "model-server": Verb(
        "valkyrie.testing.model_server.command:model_server",
        "Play a model by a script, on this machine's loopback, until interrupted.",
    ),
    "demo": _verb("doctor:demo", "Run oracle and nop on quickstart, end with a score table."),
    "doctor": _verb("doctor:doctor", "Say what this machine can do, and how to get the rest."),
    "disk": _verb("engine:disk", "Show where the bytes are."),
    "completion": _verb("completion:completion", "Print the shell completion script."),
}


# Groups that load a command only when it is called.


HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class LazyGroup(click.Group):
    """Commands by a static table of names and summaries; `apart` are those under a heading of their own."""

    def __init__(
        self, table: Mapping[str, Verb | Noun], *, apart: tuple[str, tuple[str, ...]] = ("", ()), **attrs: Any
    ) -> None:
        super().__init__(no_args_is_help=True, context_settings=HELP_NAMES, **attrs)
        self.table = dict(table)
        self.apart = apart

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [name for name, entry in self.table.items() if not is_hidden(entry)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        name = real_name(self.table, cmd_name)
        entry = self.table.get(name)
        if entry is None:
            return None
        if isinstance(entry, Noun):
            return LazyGroup(entry.verbs, name=name, help=entry.summary)
        module, _, attribute = entry.where.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if real_name(self.table, word) not in self.table and not word.startswith("-"):
            from valkyrie.text import did_you_mean

            shown = [name for name, entry in self.table.items() if not is_hidden(entry)]
            same = meant(self.table, word)
            hint = f" Did you mean {same!r}?" if same else did_you_mean(word, shown)
            hint = hint or f" There are: {', '.join(shown)}."
            raise click.UsageError(f"No such command '{word}'.{hint}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        heading, apart = self.apart
        shown = {name: entry for name, entry in self.table.items() if not is_hidden(entry)}
        parts = {"Commands": [name for name in shown if name not in apart], heading: list(apart)}
        for title, names in parts.items():
            if names:
                with formatter.section(title):
                    rows = [(", ".join(_words(name, shown[name])), shown[name].summary) for name in names]
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        words = [
            CompletionItem(word, help=entry.summary)
            for name, entry in self.table.items()
            if not is_hidden(entry)
            for word in _words(name, entry)
            if word.startswith(incomplete)
        ]
        return words + click.Command.shell_complete(self, ctx, incomplete)


def _words(name: str, entry: Verb | Noun) -> tuple[str, ...]:
    """What one may call it, as the help says."""
    return (name, *entry.aliases) if isinstance(entry, Noun) else (name,)
