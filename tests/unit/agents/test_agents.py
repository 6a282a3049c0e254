"""Finding, freezing, installing and running agents, in real process sandboxes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes.null import NullProvider
from sandboxes.process import ProcessProvider
from sandboxes.protocol import Sandbox
from sandboxes.types import SandboxCreateRequest
from valkyrie import agents, plugins
from valkyrie.agents.contract_agent import ContractAgent
from valkyrie.agents.library import AgentLibrary
from valkyrie.agents.protocol import Agent, AgentTrial
from valkyrie.agents.scaffold import init_agent
from valkyrie.domain import ExitReason, Json, TaskSpec, Timeouts
from valkyrie.errors import (
    AgentInstallError,
    BenchmarkError,
    BundleError,
    ContractValidationError,
    UsageError,
    UserError,
)

HELLO = Path(__file__).parents[3] / "examples" / "agents" / "hello"
TASK = TaskSpec(id="say/hello", digest="d", instruction="Write `Hello` to `out/greeting.txt`.")


class Bench:
    """A process sandbox, and what an agent printed in it."""

    def __init__(self, sandbox: Sandbox, root: Path) -> None:
        self.sandbox = sandbox
        self.root = root
        self.output = ""

    def trial(self, **changes: object) -> AgentTrial:
        def log(_stream: str, text: str) -> None:
            self.output += text

        trial = AgentTrial(task=TASK, sandbox=self.sandbox, secrets={}, log=log)
        return replace(trial, **changes)  # type: ignore[arg-type]

    async def text(self, path: str) -> str:
        return (await self.sandbox.download_file(path)).decode()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    provider = ProcessProvider(tmp_path / "sandboxes")
    sandbox = await provider.create_sandbox(SandboxCreateRequest())
    await sandbox.upload_file(TASK.problem_path, TASK.instruction.encode())
    yield Bench(sandbox, tmp_path)
    await provider.delete_sandbox(sandbox.id)
    await provider.close()


@pytest.fixture
def library(tmp_path: Path) -> AgentLibrary:
    return AgentLibrary(tmp_path / "library")


def write_agent(folder: Path, contract: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "contract.yaml").write_text(contract)
    return folder


def thaw(prepared: agents.PreparedAgent, folder: Path) -> Agent:
    frozen: Json = json.loads(json.dumps(agents.freeze(prepared, folder / "run")))
    agent = agents.open_frozen(frozen, folder / "run", folder / "cache")
    assert (agent.name, agent.digest, dict(agent.secrets)) == (
        prepared.name,
        prepared.digest,
        dict(prepared.secrets),
    )
    return agent


async def test_hello_from_folder_to_answer(bench: Bench, library: AgentLibrary) -> None:
    prepared = agents.open_agent(str(HELLO), kwargs={"style": "loud"}, library=library)
    agent = thaw(prepared, bench.root)
    await agent.install(bench.trial())
    assert (await agent.run(bench.trial())).exit_code == 0
    assert await bench.text("/app/out/greeting.txt") == "HELLO\n"
    assert json.loads(await bench.text(agent.output_artifacts[0].source)) == {"written": ["out/greeting.txt"]}
    assert "wrote out/greeting.txt" in bench.output
    assert await bench.sandbox.is_folder(agent.final_output or "")


async def test_a_new_agent_runs_as_it_is(bench: Bench, library: AgentLibrary) -> None:
    folder = init_agent("mine", bench.root)
    agent = thaw(agents.open_agent(str(folder), library=library), bench.root)
    await agent.install(bench.trial())
    assert (await agent.run(bench.trial())).exit_code == 0
    assert "effort low" in await bench.text("/logs/mine/notes.txt")
    with pytest.raises(UsageError, match="exists already"):
        init_agent("mine", bench.root)
    for bad in ("", "a/b", "..", "x" * 65):
        with pytest.raises(UsageError, match="cannot be an agent's name"):
            init_agent(bad, bench.root)


CONTRACT = """\
name: probe
install_cmd: echo "installing in $PWD" && test "$KEY" = hush-hush-1
run_cmd: |
  printf '%s|' {problem_statement_path} "{task_id}" '{model}' "$KEY" "$PYTHONSAFEPATH" "$FROM_TASK" "$PWD"
  false | true
secrets: {KEY: my-key, OTHER: other}
"""


async def test_environment_secrets_and_masking(bench: Bench, library: AgentLibrary) -> None:
    folder = write_agent(bench.root / "probe", CONTRACT)
    prepared = agents.open_agent(str(folder), model="it's", library=library, secrets={"OTHER": "mine"})
    assert prepared.secrets == {"KEY": "my-key", "OTHER": "mine"}, "the command line wins"
    agent = thaw(prepared, bench.root)
    task = replace(TASK, env={"FROM_TASK": "yes", "PYTHONSAFEPATH": "0"}, cwd="/app/deep er")
    trial = bench.trial(task=task, secrets={"KEY": "hush-hush-1"})
    await agent.install(trial)
    assert "installing in " in bench.output
    assert "/bundle/probe" in bench.output
    bench.output = ""
    assert (await agent.run(trial)).exit_code == 1, "pipefail"
    fields = bench.output.split("|")
    assert fields[0].endswith("/tmp/instruction.md")
    assert fields[1:6] == ["say/hello", "it's", "***", "1", "yes"]
    assert fields[6].endswith("/app/deep er")


async def test_a_contract_without_install_cmd_installs_only_its_files(
    bench: Bench, library: AgentLibrary
) -> None:
    text = "name: a\nrun_cmd: 'cat /bundle/a/said.txt; : {problem_statement_path}'\nrequired_env: [KEY]\n"
    folder = write_agent(bench.root / "a", text)
    (folder / "said.txt").write_text("it is there")
    prepared = agents.open_agent(str(folder), library=library)
    assert prepared.secrets == {"KEY": "KEY"}
    agent = thaw(prepared, bench.root)
    await agent.install(bench.trial())
    assert (await agent.run(bench.trial())).exit_code == 0
    assert "it is there" in bench.output


async def test_install_failure_shows_the_masked_tail(bench: Bench, library: AgentLibrary) -> None:
    text = (
        "name: a\ninstall_cmd: 'seq 1 30; echo key $KEY >&2; exit 3'\nrun_cmd: x {problem_statement_path}\n"
    )
    agent = thaw(agents.open_agent(str(write_agent(bench.root / "a", text)), library=library), bench.root)
    with pytest.raises(AgentInstallError) as caught:
        await agent.install(bench.trial(secrets={"KEY": "hush-hush-1"}))
    lines = str(caught.value).splitlines()
    assert lines[0] == "install_cmd failed with exit code 3."
    assert len(lines) == 15 and lines[1].strip() == "1"
    assert "  30" in lines
    assert "hush" not in str(caught.value) + bench.output


async def test_timeouts_and_kills(bench: Bench, library: AgentLibrary) -> None:
    text = "name: a\ninstall_cmd: sleep 60\nrun_cmd: 'sleep 60; : {problem_statement_path}'\n"
    slow = write_agent(bench.root / "a", text)
    agent = thaw(agents.open_agent(str(slow), library=library), bench.root)
    trial = bench.trial(task=replace(TASK, timeouts=Timeouts(install=0.2, agent=0.2)))
    with pytest.raises(AgentInstallError, match=r"took longer than 0\.2 s"):
        await agent.install(trial)
    ended = await agent.run(trial)
    assert (ended.exit_code, ended.reason) == (124, ExitReason.TIMEOUT)
    (slow / "contract.yaml").write_text(
        "name: a\ninstall_cmd: 'true'\nrun_cmd: 'kill -9 $$; : {problem_statement_path}'\n"
    )
    killed = thaw(agents.open_agent(str(slow), library=library), bench.root)
    ended = await killed.run(bench.trial())
    assert (ended.exit_code, ended.reason) == (137, ExitReason.OS_KILLED)


async def test_an_egress_list_is_never_silently_ignored(bench: Bench, library: AgentLibrary) -> None:
    text = "name: a\ninstall_cmd: x\nrun_cmd: 'echo ran {problem_statement_path}'\negress_allowlist: ['https://a.b']\n"
    prepared = agents.open_agent(str(write_agent(bench.root / "a", text)), library=library)
    assert list(prepared.egress_allowlist) == ["https://a.b"]
    with pytest.raises(Exception, match="cannot restrict egress"):
        await thaw(prepared, bench.root).run(bench.trial())
    assert "ran" not in bench.output


async def test_oracle_and_nop(bench: Bench, library: AgentLibrary) -> None:
    solution = bench.root / "solution"
    solution.mkdir()
    (solution / "solve.sh").write_text('echo "$ANSWER" > answer.txt; cat "$(dirname "$0")/hint"; exit 3\n')
    (solution / "hint").write_text("a hint\n")
    prepared = agents.open_agent("oracle", model="m", library=library)
    assert prepared.needs_solution
    oracle = thaw(prepared, bench.root)
    task = replace(TASK, env={"ANSWER": "0"}, solution_env={"ANSWER": "42"})
    trial = bench.trial(task=task, solution=solution)
    await oracle.install(trial)
    ended = await oracle.run(trial)
    assert (ended.exit_code, ended.reason) == (3, None)
    assert bench.output == "a hint\n"
    assert await bench.text("/app/answer.txt") == "42\n"
    assert not await bench.sandbox.list_files("/solution/*")
    with pytest.raises(BenchmarkError, match=r"say/hello has no solution"):
        await oracle.run(bench.trial())

    nop = thaw(agents.open_agent("nop", library=library), bench.root)
    assert not nop.needs_solution
    assert (await nop.run(bench.trial())).exit_code == 0
    with pytest.raises(UsageError, match="nop takes no parameters; leave out -k x"):
        agents.open_agent("nop", kwargs={"x": "1"}, library=library)


async def test_any_sandbox_will_do(library: AgentLibrary, tmp_path: Path) -> None:
    provider = NullProvider()
    sandbox = await provider.create_sandbox(SandboxCreateRequest())
    agent = thaw(agents.open_agent(str(HELLO), library=library), tmp_path)
    trial = AgentTrial(task=TASK, sandbox=sandbox, secrets={}, log=lambda _stream, _text: None)
    await agent.install(trial)
    assert (await agent.run(trial)).exit_code == 0
    assert await sandbox.download_file("/bundle/hello/agent.py") == (HELLO / "agent.py").read_bytes()


def test_library(library: AgentLibrary, tmp_path: Path) -> None:
    assert library.list() == []
    pushed = library.push(HELLO, "hi.v2")
    assert library.list() == [pushed]
    assert pushed.name == "hi.v2"
    assert pushed.digest == library.push(HELLO).digest, "the name is no content"
    assert library.names() == ["hello", "hi.v2"]
    out = library.download("hi.v2", tmp_path / "out")
    assert (out / "agent.py").read_bytes() == (HELLO / "agent.py").read_bytes()
    with pytest.raises(BundleError, match="nothing is overwritten"):
        library.download("hi.v2", tmp_path / "out")
    library.remove("hello")
    assert library.names() == ["hi.v2"]
    for name, says in (
        ("hi.v1", r"Did you mean 'hi\.v2'"),
        ("../x", "no pushed agent"),
        ("zzz", r"Pushed: hi\.v2"),
    ):
        with pytest.raises(UsageError, match=says):
            library.remove(name)


def test_what_cannot_be_pushed(library: AgentLibrary, tmp_path: Path) -> None:
    for name, says in (
        ("oracle", "agent of the catalogue"),
        ("a b", "cannot be an agent's name"),
        ("-x", "letters"),
    ):
        with pytest.raises(UsageError, match=says):
            library.push(HELLO, name)
    with pytest.raises(UsageError, match="is no folder"):
        library.push(tmp_path / "none")
    with pytest.raises(ContractValidationError, match="unknown key"):
        library.push(write_agent(tmp_path / "bad", CONTRACT + "extra: 1\n"))
    assert library.names() == []


def test_a_damaged_archive_is_listed_and_refused(library: AgentLibrary) -> None:
    library.push(HELLO)
    library.path("hello").write_bytes(b"PK broken")
    assert library.list()[0].digest == ""
    with pytest.raises(BundleError, match=r"hello\.zip is no usable zip"):
        agents.open_agent("hello", library=library)


def test_ways_to_name_an_agent(
    library: AgentLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.push(HELLO, "pushed")
    monkeypatch.chdir(HELLO.parent)
    by_path = agents.open_agent("./hello", library=library)
    assert by_path.name == "hello"
    assert by_path.digest == agents.open_agent("hello", library=library).digest
    by_name = agents.open_agent("pushed", library=library)
    assert (by_name.name, by_name.digest) == ("pushed", by_path.digest)
    by_zip = agents.open_agent(str(library.path("pushed")), library=library)
    assert (by_zip.name, by_zip.digest) == ("hello", by_path.digest)
    assert agents.open_agent("pushed", library=library, kwargs={"style": "loud"}).digest != by_path.digest


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("orcale", r"Did you mean 'oracle'\? For a folder, give its path: \./orcale"),
        ("zzzzzz", "Known: oracle, nop, .*pushed"),
        ("", "no agent is called ''"),
        ("./none", "none is no folder"),
        ("/etc", "has no contract.yaml"),
        ("no.such.module:Agent", "there is no module 'no'"),
        ("json:Agent", "json has no 'Agent'"),
        ("json:__doc__", "is no class"),
        ("builtins:list", "making the agent failed: TypeError"),
        ("builtins:repr", "is no agent: it lacks name"),
    ],
)
def test_unknown_agents(library: AgentLibrary, spec: str, says: str) -> None:
    library.push(HELLO, "pushed")
    with pytest.raises(UserError, match=says):
        agents.open_agent(spec, library=library)


def test_bad_parameters_are_found_before_anything_is_written(library: AgentLibrary) -> None:
    with pytest.raises(ContractValidationError, match="`styl` is no parameter of it"):
        agents.open_agent(str(HELLO), kwargs={"styl": "loud"}, library=library)


def test_the_frozen_copy_is_the_runs_own(library: AgentLibrary, tmp_path: Path) -> None:
    folder = write_agent(tmp_path / "probe", CONTRACT)
    prepared = agents.open_agent(str(folder), model="m", library=library)
    agent = thaw(prepared, tmp_path)
    assert isinstance(agent, ContractAgent)
    assert agent.frozen["contract"]["kwargs"] == {}
    (folder / "contract.yaml").write_text(CONTRACT + "# changed\n")
    with pytest.raises(BundleError, match="changed while it was being read"):
        agents.freeze(prepared, tmp_path / "other")
    archive = tmp_path / "run" / "agent.zip"
    archive.write_bytes(archive.read_bytes()[:-1] + b"x")
    with pytest.raises(BundleError, match="changed since"):
        agents.open_frozen(agent.frozen, tmp_path / "run", tmp_path / "cache")
    archive.unlink()
    with pytest.raises(BundleError, match="is missing"):
        agents.open_frozen(agent.frozen, tmp_path / "run", tmp_path / "cache")


def test_secrets_are_no_part_of_what_is_tested(library: AgentLibrary, tmp_path: Path) -> None:
    folder = write_agent(tmp_path / "probe", CONTRACT)
    digests = {
        agents.open_agent(str(folder), model="m", library=library, secrets=secrets).digest
        for secrets in ({}, {"KEY": "another"})
    }
    assert len(digests) == 1


def test_plugins(library: AgentLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_plugin.py").write_text(
        "from valkyrie.agents.catalog import Nop\n"
        "class Lazy(Nop):\n    name = 'lazy'\n"
        "    def __init__(self, options): self._options = options\n"
    )
    (tmp_path / "my_broken.py").write_text("1/0\n")
    (tmp_path / "my_needy.py").write_text("import no_such_thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    prepared = agents.open_agent("my_plugin:Lazy", kwargs={"a": "b"}, library=library)
    assert prepared.name == "lazy"
    assert thaw(prepared, tmp_path).name == "lazy"
    with pytest.raises(UserError, match="ZeroDivisionError"):
        plugins.load("my_broken:X", group="g")
    with pytest.raises(UserError, match="needs the missing module 'no_such_thing'"):
        plugins.load("my_needy:X", group="g")
    with pytest.raises(UsageError, match="no plugin 'x' in g"):
        plugins.load("x", group="g")
    assert plugins.load("yaml:SafeLoader", group="g").__name__ == "SafeLoader"


def test_catalogue_agents_load_no_contract_reader() -> None:
    program = (
        "import sys, pathlib; from valkyrie import agents; p = pathlib.Path('.');"
        "agents.open_frozen({'kind': 'catalog', 'name': 'oracle'}, p, p);"
        "print([m for m in ('yaml', 'benchmark_runner.agent_bundle.contract') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
