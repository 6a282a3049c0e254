"""Read `.env` files, and know the variables that say where keys are sent or which code is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

_ASSIGNMENT = re.compile(
    r"""
    [ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*
    (?: '(?P<single>[^']*)'
      | "(?P<double>(?:[^"\\]|\\.)*)"
      | (?P<bare>[^'"\r\n][^\r\n]*)?
    )
    (?P<rest>[^\r\n]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_IGNORED = re.compile(r"[ \t]*(#[^\n]*)?\r?$")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(slots=True)
class Dotenv:
    """What a file says, and the lines that say nothing we understand."""

    values: Mapping[str, str]
    bad_lines: list[int] = field(default_factory=list)


def parse_dotenv(text: str) -> Dotenv:
    """Read a `.env` file; the last of several values for one name wins."""
    values: dict[str, str] = {}
    bad: list[int] = []
    at = 0
    text = text.removeprefix("\ufeff")
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if _IGNORED.match(text, at, end):
            at = end + 1
            continue
        match = _ASSIGNMENT.match(text, at)
        if match is None or ((rest := match["rest"].strip()) and not rest.startswith("#")):
            bad.append(text.count("\n", 0, at) + 1)
            at = end + 1
            continue
        values[match["name"]] = _value(match)
        at = match.end()
        at += len(text[at : at + 2]) - len(text[at : at + 2].lstrip("\r\n"))
    return Dotenv(values, bad)


def _value(match: re.Match[str]) -> str:
    if (single := match["single"]) is not None:
        return single
    if (double := match["double"]) is not None:
        return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), double, flags=re.DOTALL)
    bare = match["bare"] or ""
    return re.sub(r"(^|[ \t])#.*", "", bare).strip()


# Variables that say where keys are sent or which code is loaded, rather than carry a value.

RedirectionKind = Literal["model address", "proxy", "certificate", "loader", "interpreter", "git", "setting"]

_VENDORS = (
    "AI21|ALEPH_ALPHA|ANTHROPIC|AZURE|AWS|BEDROCK|CEREBRAS|CLAUDE|CODEX|COHERE|COPILOT|CURSOR|DASHSCOPE|"
    "DATABRICKS|DEEPINFRA|DEEPSEEK|FIREWORKS|GEMINI|GITHUB|GOOGLE|GROQ|HF|HUGGINGFACE|KIMI|LITELLM|LLM|"
    "LM_STUDIO|MINIMAX|MISTRAL|MODEL|MOONSHOT|NVIDIA|OLLAMA|OPENAI|OPENCODE|OPENROUTER|PERPLEXITY|QWEN|"
    "REPLICATE|SAMBANOVA|TOGETHER|VERTEX|VERTEXAI|VLLM|WATSONX|XAI|ZAI|ZHIPU"
)
_ADDRESS = re.compile(
    rf"({_VENDORS})(_\w+)?_(URL|URI|BASE|ENDPOINT|HOST|HOSTNAME|SERVER|ORIGIN|GATEWAY|CUSTOM_HEADERS)"
    rf"|({_VENDORS})_ENDPOINT_URL\w*"
    r"|\w*_BASE_UR[LI]|\w*_API_(BASE|HOST|URL|ENDPOINT)"
)
_PREFIXES: tuple[tuple[RedirectionKind, str], ...] = (
    ("loader", "LD_|DYLD_|_RLD"),
    (
        "interpreter",
        "PYTHON|BASH_FUNC_|PERL5|RUBY|BUNDLE_|LUA_|DENO_|BUN_|COMPLUS_|CORECLR_|DOTNET_|R_PROFILE|R_ENVIRON|"
        "R_LIBS",
    ),
    ("git", "GIT_"),
    # Whoever runs the sandboxes sees every key that agents are given.
    ("setting", "VALKYRIE_|DAYTONA_"),
)
_EXACT: dict[RedirectionKind, frozenset[str]] = {
    "model address": frozenset(
        (
            "ANTHROPIC_BASE_URL",
            "ANTHROPIC_BEDROCK_BASE_URL",
            "ANTHROPIC_CUSTOM_HEADERS",
            "ANTHROPIC_VERTEX_BASE_URL",
            "AWS_CONFIG_FILE",
            "AWS_ENDPOINT_URL",
            "AWS_PROFILE",
            "AWS_SHARED_CREDENTIALS_FILE",
            "AZURE_OPENAI_ENDPOINT",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_VERTEX",
            "CLAUDE_CONFIG_DIR",
            "CODE_ASSIST_ENDPOINT",
            "CODEX_HOME",
            "COPILOT_PROVIDER_BASE_URL",
            "GOOGLE_GEMINI_BASE_URL",
            "OLLAMA_HOST",
            "OPENAI_API_BASE",
            "OPENAI_BASE_URL",
        )
    ),
    "certificate": frozenset(
        (
            "AWS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
            "CURL_HOME",
            "NODE_EXTRA_CA_CERTS",
            "NODE_TLS_REJECT_UNAUTHORIZED",
            "OPENSSL_CONF",
            "OPENSSL_ENGINES",
            "OPENSSL_MODULES",
            "REQUESTS_CA_BUNDLE",
            "SSLKEYLOGFILE",
            "SSL_CERT_DIR",
            "SSL_CERT_FILE",
        )
    ),
    "loader": frozenset(("GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "LOCALDOMAIN", "RES_OPTIONS")),
    "interpreter": frozenset(
        (
            "BASHOPTS",
            "BASH_ENV",
            "CLASSPATH",
            "ENV",
            "GEM_HOME",
            "GEM_PATH",
            "IFS",
            "JAVA_TOOL_OPTIONS",
            "JDK_JAVA_OPTIONS",
            "NODE_OPTIONS",
            "NODE_PATH",
            "NODE_REPL_EXTERNAL_MODULE",
            "PERLLIB",
            "PHPRC",
            "PHP_INI_SCAN_DIR",
            "PROMPT_COMMAND",
            "PS4",
            "SHELLOPTS",
            "ZDOTDIR",
            "_JAVA_OPTIONS",
        )
    ),
    "setting": frozenset(
        (
            "AGENT_INFERENCE_API_URL",
            "BENCHMARK_CATALOG_API_URL",
            "BENCHMARK_SERVICE_BASE_URL",
            "DESCOPE_BASE_URI",
            "DESCOPE_BASE_URL",
            "DOCKER_CONFIG",
            "DOCKER_HOST",
            "LOG_GROUP",
            "S3_BUCKET",
            "TRACKER_SERVICE_URL",
        )
    ),
}
_OWN_CREDENTIAL = re.compile(r"VALKYRIE_\w*API_KEY")
REDIRECTING: frozenset[str] = frozenset().union(*_EXACT.values())
"""Variables that change where keys go or which code runs; `is_redirecting` knows whole families beside."""


def redirection(name: str) -> RedirectionKind | None:
    """Return what a variable of this name can redirect, or None for one that only carries a value."""
    word = name.upper()
    if _OWN_CREDENTIAL.fullmatch(word):
        return None
    if re.fullmatch(r"(\w+_)?PROXY", word):
        return "proxy"
    for kind, names in _EXACT.items():
        if word in names:
            return kind
    for kind, prefixes in _PREFIXES:
        if re.match(prefixes, word):
            return kind
    return "model address" if _ADDRESS.fullmatch(word) else None


def is_redirecting(name: str) -> bool:
    """Return whether a variable of this name says where models or proxies are, or which code is loaded."""
    return redirection(name) is not None
