"""Every command: where it is, and one line about it. `--help` is written from here and loads no command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


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
        "start": _verb("run.start:start", "Start a run: one agent on one benchmark.", "run"),
        "fetch": _verb("run.look:fetch", "Show a run as it stands, or watch it live.", "summary"),
        "list": _verb("run.look:list_runs", "List runs, newest first."),
        "wait": _verb("run.wait:wait", "Block until a run ended; the exit code says how."),
        "watch": _verb("run.wait:watch", "Same as `run wait --connect`.", hidden=True),
        "stop": _verb("run.change:stop", "Stop a run; trials under way finish unless forced.", "cancel"),
        "resume": _verb("run.change:resume", "Go on with what was stopped or interrupted."),
        "retry": _verb("run.change:retry", "Run errored (and stopped) trials again."),
        "regrade": _verb("run.regrade:regrade", "Grade kept work again, with other tests or another judge."),
        "update": _verb("run.change:update", "Change a run's concurrency, label, priority or limits."),
        "results": _verb("run.take:results", "Write a run's results file."),
        "outputs": _verb("run.take:outputs", "Copy what agents left behind to a folder."),
        "errors": _verb("run.trials:errors", "Show a run's open errors, grouped."),
        "tasks": _verb("run.trials:tasks", "List a run's trials."),
        "show": _verb("run.show:show", "Show a trial to read: instruction, steps, verdict and evidence."),
        "logs": _verb("run.logs:logs", "Print logs: of one trial's attempt, or of a whole run."),
        "debug": _verb("run.trials:debug", "Open a shell in a kept sandbox."),
        "delete": _verb(
            "run.change:delete", "Forget an ended run, or all that are old, and all that was kept of them."
        ),
    },
)
BENCHMARK_JOB = Noun(
    "Compare agents: many runs as one job.",
    {
        "start": _verb("job.run:start", "Start a job: agents × tasks × trials, side by side.", "run"),
        "fetch": _verb("job.summary:fetch", "Show who won: the table, intervals, comparisons.", "summary"),
        "list": _verb("job.listing:list_jobs", "List jobs, newest first."),
        "wait": _verb("job.watch:wait", "Block until a job ended; the exit code says how."),
        "watch": _verb("job.watch:watch", "Same as `job wait --connect`.", hidden=True),
        "results": _verb("job.results:results", "Write the results of a job's runs to one file."),
        "logs": _verb("job.logs:logs", "Write a job's logs and kept files to a folder."),
        "stop": _verb("job.change:stop", "Stop a job; trials under way finish unless forced.", "cancel"),
        "resume": _verb("job.change:resume", "Go on, perhaps with more agents, tasks or trials."),
        "retry": _verb("job.change:retry", "Run errored (and stopped) trials again."),
        "delete": _verb("job.change:delete", "Forget an ended job, its runs and all that was kept."),
    },
    aliases=("job", "bmj"),
)
BENCHMARK = Noun(
    "See which benchmarks there are, add one, make one.",
    {
        "list": _verb("benchmark:list_benchmarks", "List the benchmarks that can be named."),
        "tasks": _verb("benchmark:tasks", "List the task ids of a benchmark."),
        "check": _verb("benchmark_check:check", "Check what a benchmark's tasks are open to."),
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
        "install": _verb("install:install", "Take an agent in from a git repository."),
        "list": _verb("agent:list_agents", "List the pushed agents."),
        "remove": _verb("agent:remove", "Forget a pushed agent; runs keep their own copy."),
        "download": _verb("agent:download", "Unpack a pushed agent into a folder."),
        "catalog": _verb("agent:catalog", "List the agents that are built in."),
        "fetch": _verb("layers:fetch", "Install a catalogue agent ahead of its first run."),
        "layers": _verb("layers:list_layers", "List the catalogue agents that are installed here."),
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
        "set": _verb("config.service:set_service", "Say where the service of a benchmark is."),
        "add": _verb("config.service:add", "Same as `config service set`."),
        "list": _verb("config.service:list_services", "List the services, and whether each answers."),
        "remove": _verb("config.service:remove", "Forget where a service is."),
    },
)
CONFIG_AUTH = Noun(
    "Credentials for benchmark services.",
    {
        "set": _verb("config.auth:set_credential", "Keep the credential of a benchmark's service."),
        "list": _verb("config.auth:list_credentials", "List the services with a credential, masked."),
        "remove": _verb("config.auth:remove", "Forget a credential."),
    },
)
CONFIG_PROVIDER = Noun(
    "Remote sandbox providers, and the default one.",
    {
        "set": _verb("config.provider:set_provider", "Say how to reach a remote sandbox provider."),
        "default": _verb("config.provider:default", "Choose the provider of runs that name none."),
        "list": _verb("config.provider:list_providers", "List the sandbox providers."),
        "remove": _verb("config.provider:remove", "Forget how to reach a provider."),
    },
)
CONFIG = Noun(
    "Read and write the config file.",
    {
        "init": _verb("config.init:init", "Set this machine up, value by value."),
        "set": _verb("config.keys:set_value", "Set one key."),
        "get": _verb("config.keys:get", "Print the value of one key that is in force."),
        "remove": _verb("config.keys:remove", "Remove one key from the file."),
        "list": _verb("config.keys:list_keys", "List every key, its value and where it comes from."),
        "path": _verb("config.keys:path", "Print where the config file is."),
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
    {"status": _verb("queue:status", "Show what waits, what runs, and who works.")},
)
DB = Noun(
    "Look after the database.",
    {
        "upgrade": _verb("db:upgrade", "Bring the database to this program's schema."),
        "current": _verb("db:current", "Say where the database is and which schema it has."),
        "check": _verb("db:check", "Look for what is wrong with the database."),
        "compact": _verb("db:compact", "Give the disk back what deleted runs left in the database."),
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
    "init": _verb("init:init", "Write a first eval, a skill and a suite."),
    "trust": _verb("trust:trust", "Let a project's own plugins run on this machine."),
    "lint": _verb("lint:lint", "Find what is wrong in specs, skills, tasks and agents."),
    "eval": _verb("eval:eval_command", "Run stimuli against an agent and grade what it did."),
    "grade": _verb(
        "grade:grade", "Grade results from stdin with the graders of an eval spec; no agent runs."
    ),
    "oracle": _verb(
        "oracle:oracle",
        "Prepare each stimulus, apply its golden inputs, and grade the result; no agent runs.",
    ),
    "compare": _verb("compare:compare", "Compare agents on the tasks they have in common."),
    "experiment": EXPERIMENT,
    "export": _verb("export:export", "Write evals or their results in another tool's form."),
    "ingest": _verb("ingest:ingest", "Store results that came about elsewhere."),
    "benchmark": BENCHMARK,
    "agent": AGENT,
    "secret": SECRET,
    "config": CONFIG,
    "admin": ADMIN,
    "sandbox": SANDBOX,
    "queue": QUEUE,
    "serve": _verb("serve:serve", "Serve the tracker to a team over HTTP."),
    "executor": _verb("executor:executor", "Work off the runs of a tracker's database."),
    "db": DB,
    "model-server": Verb(
        "valkyrie.testing.model_server.command:model_server",
        "Play a model by a script, on this machine's loopback, until interrupted.",
    ),
    "demo": _verb("demo:demo", "Run oracle and nop on quickstart, end with a score table."),
    "doctor": _verb("doctor:doctor", "Say what this machine can do, and how to get the rest."),
    "disk": _verb("disk:disk", "Show where the bytes are."),
    "completion": _verb("completion:completion", "Print the shell completion script."),
}
