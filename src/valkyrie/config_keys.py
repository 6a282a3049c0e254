"""What can be configured: keys with one value, maps with an entry per name."""

from __future__ import annotations

from valkyrie.config_forms import (
    GRADINGS,
    Entry,
    Key,
    Map,
    Value,
    check_credential,
    check_networks,
    check_pattern,
    check_secret_name,
    check_service,
    check_url,
    matching,
)
from valkyrie.errors import UsageError
from valkyrie.permissions import configured_names
from valkyrie.suggest import did_you_mean

__all__ = [
    "AUTH",
    "AWS_KEYS",
    "GRADINGS",
    "KEYS",
    "MAPS",
    "MODES",
    "NO_LOGS",
    "OLD_PROVIDER_SECRETS",
    "REQUIRED",
    "SANDBOX_PROVIDERS",
    "SERVICES",
    "Entry",
    "Key",
    "Map",
    "Value",
    "check_url",
    "find_key",
    "find_map",
    "find_setting",
]

MODES = ("local", "self-hosted", "hosted")
REQUIRED = {mode: ("tracker_url", "api_key") for mode in MODES if mode != "local"}
"""Keys a mode cannot do without."""
NO_LOGS = "off"
"""As LOG_GROUP: logs stay out of CloudWatch."""

REGION = r"[a-z]{2}(-[a-z]+)+-\d+"
OLD_PROVIDER_SECRETS = ("SANDBOX_PROVIDER_SECRET_NAME", "DAYTONA_SECRET_NAME")
"""Keys that held the name of Daytona's secret in earlier files, the newer first."""

SERVICES, AUTH, SANDBOX_PROVIDERS = "custom_benchmark_services", "benchmark_auth", "sandbox_providers"
MAPS = (
    Map(
        SERVICES,
        "config service",
        "Benchmark services of your own: name and address.",
        "`name: url`, or `name: {url, grading}`",
        check_service,
    ),
    Map(
        AUTH,
        "config auth",
        "Credential sent as `Authorization` to the service of that name.",
        "`name: credential`",
        check_credential,
    ),
    Map(
        SANDBOX_PROVIDERS,
        "config provider",
        "Remote sandbox providers, and the secret that holds how to reach each.",
        "`provider: secret name`, or nothing for its environment variables",
        check_secret_name,
    ),
)
AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_HERE = (
    Key("default_provider", str, "Sandbox provider of runs that name none.", "local", "VALKYRIE_PROVIDER"),
    Key(
        "default_concurrency", int, "Trials at once of runs that say no number.", 5, "VALKYRIE_CONCURRENCY", 1
    ),
    Key(
        "cpu_overcommit",
        float,
        "CPUs of tasks admitted per CPU of this host.",
        4.0,
        "VALKYRIE_CPU_OVERCOMMIT",
        0.1,
    ),
    Key(
        "docker_image",
        str,
        "Image of tasks that name none, with --provider docker; it must have python3.",
        "python:3.12",
        "VALKYRIE_DOCKER_IMAGE",
    ),
    Key(
        "service_registry",
        str,
        "File that maps benchmark names to services.",
        env="VALKYRIE_SERVICE_REGISTRY",
        path=True,
        form="a file's path",
    ),
    Key(
        "service_base_url",
        str,
        "Where other services are: a domain they are names under, or a URL with {name}.",
        env="BENCHMARK_SERVICE_BASE_URL",
        check=check_pattern,
        form="a domain or an http(s) URL",
    ),
    Key(
        "sandbox_public_url",
        str,
        "URL under which services elsewhere reach this machine's sandbox server.",
        env="VALKYRIE_SANDBOX_PUBLIC_URL",
        url=True,
        check=check_url,
    ),
    Key(
        "sandbox_port",
        int,
        "Port the sandbox server listens on; 0 is any free one.",
        0,
        "VALKYRIE_SANDBOX_PORT",
        0,
        65535,
    ),
    Key(
        "artifacts_folder",
        str,
        "Shared folder for agents and artifacts, where there is no S3_BUCKET.",
        env="VALKYRIE_ARTIFACTS_FOLDER",
        path=True,
        form="a folder's path",
    ),
    Key(
        "allowed_networks",
        str,
        "Private networks that sandboxes with network public may reach, as CIDRs with commas.",
        env="VALKYRIE_ALLOWED_NETWORKS",
        check=check_networks,
        form="networks such as 10.1.0.0/16, separated by commas",
    ),
    Key(
        "git_logins",
        str,
        "Hosts at which git may log in as you, or go without https, for a repository that a spec names.",
        env="VALKYRIE_GIT_LOGINS",
        check=matching(r"[A-Za-z0-9.-]+( *, *[A-Za-z0-9.-]+)*", "host names, separated by commas"),
        form="host names such as github.com, separated by commas",
        listed=True,
    ),
    Key(
        "pass_env",
        str,
        "Your variables that specs, tasks and agents may have when they ask for them by name.",
        check=configured_names,
        form="names of variables, separated by commas",
        listed=True,
    ),
    Key(
        "work_max_mb",
        int,
        "Megabytes of a trial's work that are kept for grading it again; 0 keeps none.",
        256,
        "VALKYRIE_WORK_MAX_MB",
        0,
    ),
    Key(
        "work_run_max_mb",
        int,
        "Megabytes of work that are kept of all trials of a run.",
        10_240,
        "VALKYRIE_WORK_RUN_MAX_MB",
        0,
    ),
    Key(
        "trajectory_max_mb",
        int,
        "Megabytes that are kept of an agent's own account of a trial; a larger one is cut at a step.",
        32,
        "VALKYRIE_TRAJECTORY_MAX_MB",
        1,
        1024,
    ),
)
_TRACKER = (
    Key(
        "mode",
        str,
        "How Valkyrie is used here; `valk config init` changes it.",
        "local",
        check=matching("|".join(MODES), "local, self-hosted or hosted"),
        form="local, self-hosted or hosted",
    ),
    Key(
        "tracker_url",
        str,
        "Tracker to talk to instead of this machine.",
        env="TRACKER_SERVICE_URL",
        url=True,
        check=check_url,
    ),
    Key(
        "tracker.allowed_networks",
        str,
        "Of a tracker: networks its callers may name services and webhooks in, besides public addresses.",
        env="VALKYRIE_TRACKER_ALLOWED_NETWORKS",
        check=check_networks,
        form="networks such as 10.1.0.0/16, separated by commas",
    ),
    Key(
        "api_key",
        str,
        "Key shown to the tracker.",
        env="VALKYRIE_API_KEY",
        check=check_credential,
        form="a key",
        secret=True,
    ),
)
_MESSAGES = (
    Key("webhook", str, "Name of the secret that holds the Slack webhook URL."),
    Key("webhook_url", str, "URL that is sent signed JSON messages about runs.", url=True),
    Key("webhook_key", str, "Name of the secret those messages are signed with."),
    Key(
        "allow_local_webhooks",
        bool,
        "Messages may be sent to loopback and link-local addresses, and callers name services there.",
        False,
        "VALKYRIE_ALLOW_LOCAL_WEBHOOKS",
    ),
)
_AWS = (
    Key(
        "S3_BUCKET",
        str,
        "S3 bucket for agents and artifacts.",
        env="S3_BUCKET",
        check=matching("[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "the name of a bucket, without s3://"),
        form="a bucket's name",
    ),
    Key(
        "AWS_DEFAULT_REGION",
        str,
        "AWS region.",
        env="AWS_DEFAULT_REGION",
        check=matching(REGION, "a region such as eu-central-1"),
        form="a region's name",
    ),
    Key(
        "LOG_GROUP",
        str,
        "CloudWatch log group prefix; `off` keeps logs out of CloudWatch. Used with S3_BUCKET.",
        "benchmarks",
        "LOG_GROUP",
        check=matching("[A-Za-z0-9._/#-]{1,400}", "a name of letters, digits and . _ / # -"),
        form="a log group's name, or off",
    ),
    Key("LOG_RETENTION_POLICY", int, "Days CloudWatch keeps logs.", 365, "LOG_RETENTION_POLICY", 1),
    *(
        Key(
            name,
            str,
            f"{what}; left out, AWS is reached as the AWS command line does.",
            env=name,
            check=check_credential,
            form=form,
            secret=True,
        )
        for name, what, form in (
            ("AWS_ACCESS_KEY_ID", "AWS access key", "an access key's id"),
            ("AWS_SECRET_ACCESS_KEY", "Its secret half", "an access key's secret"),
            ("AWS_SESSION_TOKEN", "Its session token, if it is temporary", "a session token"),
        )
    ),
)
KEYS: tuple[Key, ...] = (*_HERE, *_TRACKER, *_MESSAGES, *_AWS)


def find_setting(name: str) -> Key | Map:
    """The key or map of that name, upper or lower case; UsageError of an unknown one says which is near."""
    settings: list[Key | Map] = [*KEYS, *MAPS]
    known = {setting.name.lower(): setting for setting in settings}
    if name.lower() in known:
        return known[name.lower()]
    if name.upper() in OLD_PROVIDER_SECRETS:
        raise UsageError(f"{name} is now `valk config provider set daytona SECRET`.", cause="unknown_key")
    names = [setting.name for setting in known.values()]
    hint = did_you_mean(name, names) or f" There are: {', '.join(names)}"
    raise UsageError(f"Unknown config key {name!r}.{hint}", cause="unknown_key")


def find_key(name: str) -> Key:
    """The key of that name; a map is refused with the commands that are for it."""
    found = find_setting(name)
    if isinstance(found, Map):
        raise UsageError(
            f"{found.name} has an entry per name, not one value: see `valk {found.command} list` and "
            f"`valk {found.command} set`.",
            cause="config",
        )
    return found


def find_map(name: str) -> Map:
    """The map of that name."""
    found = find_setting(name)
    if isinstance(found, Key):
        raise UsageError(f"{found.name} is one value, not a map: see `valk config set`.", cause="config")
    return found
