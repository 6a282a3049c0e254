"""Layers: installed once, for each kind of root file system, whoever asks and whatever crashes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes.process import ProcessProvider
from sandboxes.types import HostSource
from tests.unit.agents.layers.local_packages import builds, npm_package, wheel
from valkyrie.agents.layers import LayerCache, RootKind, kind_of_host, read_manifest
from valkyrie.agents.protocol import LayerSpec
from valkyrie.errors import InfrastructureError, UsageError, UserError

pytestmark = pytest.mark.slow

ROOT = RootKind("x86_64", "glibc", "2.36", python="3.11", node=20)
needs_npm = pytest.mark.skipif(not shutil.which("npm"), reason="no npm on this machine")


def pip_spec(folder: Path, name: str = "hello") -> LayerSpec:
    return LayerSpec("tool", "1.0.0", pip=(str(wheel(folder, name)),))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A layer of one Python package, installed by someone whose files nobody else may read; what was said."""
    folder, lines = tmp_path_factory.mktemp("built"), []
    before = os.umask(0o077)
    try:
        layer = asyncio.run(LayerCache(folder / "layers").built(pip_spec(folder), ROOT, lines.append))
    finally:
        os.umask(before)
    return layer, lines


async def test_a_layer_is_built_once_for_many_trials(tmp_path: Path) -> None:
    cache, spec = tmp_path / "layers", pip_spec(tmp_path)
    async with ProcessProvider(tmp_path / "state") as provider:
        layers, told = LayerCache(cache), list[str]()
        layers.on_install = told.append
        asked = [layers.ready(spec, provider, HostSource(), lambda _line: None) for _ in range(200)]
        folders = set(await asyncio.gather(*asked))
        folders.add(await LayerCache(cache).ready(spec, provider, HostSource(), lambda _line: None))
        assert [sandbox.id async for sandbox in provider.list_sandboxes()] == []
    assert len(folders) == len(builds(cache)) == 1
    assert [line.split(" ", 2)[:2] for line in told] == [["Installing", "tool"], ["Installed", "tool"]]
    assert (folders.pop() / "python" / "hello.py").is_file()


async def test_another_kind_of_root_has_a_layer_of_its_own(tmp_path: Path) -> None:
    layers, spec = LayerCache(tmp_path / "layers"), pip_spec(tmp_path)
    first = await layers.built(spec, ROOT, lambda _line: None)
    again = await layers.built(spec, RootKind("x86_64", "glibc", "2.36", python="3.11"), lambda _line: None)
    other = await layers.built(spec, RootKind("x86_64", "musl", "1.2", python="3.11"), lambda _line: None)
    assert first == again != other
    assert len(builds(tmp_path / "layers")) == 2


def test_its_manifest_says_what_was_installed(built: tuple[Path, list[str]]) -> None:
    layer, lines = built
    manifest = read_manifest(layer)
    assert (manifest.name, manifest.version, manifest.installed) == ("tool", "1.0.0", {"hello": "1.0.0"})
    root = {"machine": "x86_64", "libc": "glibc", "libc_version": "2.36", "python": "3.11"}
    assert manifest.root == root
    assert manifest.files > 3
    assert lines[0].startswith("Installing tool 1.0.0")
    assert lines[-1].startswith("Installed tool 1.0.0")


def test_everyone_may_read_it_and_nobody_else_may_write(built: tuple[Path, list[str]]) -> None:
    layer, _ = built
    for path in (layer, *layer.rglob("*")):
        mode = path.stat().st_mode
        assert mode & 0o444 == 0o444, path
        assert mode & 0o022 == 0, path


def test_a_python_command_runs_wherever_the_layer_is_seen(
    built: tuple[Path, list[str]], tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(built[0], moved)
    (tmp_path / "hello.py").write_text("raise SystemExit('the wrong module')\n")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    said = subprocess.run([moved / "bin" / "hello"], env=env, capture_output=True, text=True, check=True)
    assert said.stdout == "python says hello\n"
    assert str(Path(sys.executable).parent) not in (moved / "python" / "bin" / "hello").read_text()


@needs_npm
async def test_npm_packages_run_no_code_while_they_are_installed(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    package = npm_package(tmp_path, "greeter", script=f"touch {trap}")
    spec = LayerSpec("greeter", "1.0.0", npm=(str(package),), node=True)
    layer = await LayerCache(tmp_path / "layers").built(spec, ROOT, lambda _line: None)
    assert not trap.exists()
    assert read_manifest(layer).installed == {"greeter": "1.0.0"}
    said = subprocess.run([layer / "bin" / "greeter"], capture_output=True, text=True, check=True)
    assert said.stdout == "node says hello\n"


async def test_two_processes_build_it_once(tmp_path: Path) -> None:
    cache, package = tmp_path / "layers", wheel(tmp_path, "hello")
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from valkyrie.agents.layers import LayerCache, RootKind\n"
        "from valkyrie.agents.protocol import LayerSpec\n"
        f"spec = LayerSpec('tool', '1.0.0', pip=({str(package)!r},))\n"
        f"root = RootKind('x86_64', 'glibc', '2.36', python='3.11')\n"
        f"print(asyncio.run(LayerCache(Path({str(cache)!r})).built(spec, root, lambda line: None)))\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    folders = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(folders) == len(builds(cache)) == 1


async def test_what_a_killed_builder_left_is_removed_and_built_again(tmp_path: Path) -> None:
    cache, spec = tmp_path / "layers", pip_spec(tmp_path)
    layers = LayerCache(cache)
    layer = await layers.built(spec, ROOT, lambda _line: None)
    shutil.rmtree(layer)
    half = cache / f".draft-{layer.name}-killed"
    half.mkdir()
    (half / "part").write_text("half")
    assert await LayerCache(cache).built(spec, ROOT, lambda _line: None) == layer
    assert not half.exists()
    assert not list(cache.glob(".draft-*"))
    assert len(builds(cache)) == 2


async def test_cancelled_the_tool_is_dead_and_nothing_is_left(tmp_path: Path, monkeypatch) -> None:
    pid_file = tmp_path / "pid"
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "npm").write_text(
        f"#!/bin/sh\necho $$ >{pid_file}.new; mv {pid_file}.new {pid_file}; sleep 600\n"
    )
    (tools / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    spec = LayerSpec("tool", "1.0.0", npm=("tool@1.0.0",))
    task = asyncio.create_task(LayerCache(tmp_path / "layers").built(spec, ROOT, lambda _line: None))
    while not pid_file.exists():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), signal.SIGCONT)
    assert not list((tmp_path / "layers").glob(".draft-*"))


def fake_npm(folder: Path, monkeypatch, said: str, code: int = 1) -> Path:
    """An npm that counts how often it was called, says something and fails: no real one can be made to."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "said").write_text(said)
    (tools / "npm").write_text(f"#!/bin/sh\necho x >>{tools}/calls; cat {tools}/said; exit {code}\n")
    (tools / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return tools / "calls"


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("npm error code ETARGET\nnpm error notarget No matching version found", UsageError, "no tool 9.9.9"),
        ("npm error code ENOTFOUND\nnpm error network", InfrastructureError, "valk agent fetch"),
        ("npm error code ENOSPC", InfrastructureError, "disk is full"),
        ("something else", InfrastructureError, "exit code 1"),
    ],
)
async def test_a_failure_says_why_and_the_way_out(
    tmp_path: Path, monkeypatch, said: str, kind: type[Exception], words: str
) -> None:
    fake_npm(tmp_path, monkeypatch, said)
    spec = LayerSpec("tool", "9.9.9", npm=("tool@9.9.9",))
    with pytest.raises(kind, match=words) as caught:
        await LayerCache(tmp_path / "layers").built(spec, ROOT, lambda _line: None)
    assert said.splitlines()[-1] in str(caught.value)


async def test_who_waits_for_a_failed_build_is_told_without_another(tmp_path: Path, monkeypatch) -> None:
    calls = fake_npm(tmp_path, monkeypatch, "npm error code ENOTFOUND")
    spec, layers = LayerSpec("tool", "1.0.0", npm=("tool@1.0.0",)), LayerCache(tmp_path / "layers")
    asked = [layers.built(spec, ROOT, lambda _line: None) for _ in range(20)]
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert {(type(error), getattr(error, "cause", None)) for error in ended} == {
        (InfrastructureError, "agent_fetch_failed")
    }
    assert calls.read_text() == "x\n"


async def test_passwords_in_what_a_tool_says_are_not_repeated(tmp_path: Path, monkeypatch) -> None:
    fake_npm(tmp_path, monkeypatch, "npm error GET https://me:hunter2@registry.example/tool")
    lines: list[str] = []
    spec = LayerSpec("tool", "1.0.0", npm=("tool@1.0.0",))
    with pytest.raises(InfrastructureError) as caught:
        await LayerCache(tmp_path / "layers").built(spec, ROOT, lines.append)
    assert "hunter2" not in f"{caught.value}{lines}"


@pytest.mark.parametrize("version", ["latest", "../../x", "", "1.0.0/../..", "-rf", "1" * 100])
async def test_a_version_is_exact(tmp_path: Path, version: str) -> None:
    with pytest.raises(UsageError, match="no version"):
        await LayerCache(tmp_path / "layers").built(LayerSpec("tool", version), ROOT, lambda _line: None)
    assert not (tmp_path / "layers").exists()


async def test_a_python_agent_needs_python_in_the_root(tmp_path: Path) -> None:
    bare = RootKind("x86_64", "musl", "1.2")
    with pytest.raises(UserError, match="no python3"):
        await LayerCache(tmp_path / "layers").built(pip_spec(tmp_path), bare, lambda _line: None)


async def test_a_link_that_leads_out_of_a_package_is_refused(tmp_path: Path, monkeypatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "npm").write_text("#!/bin/sh\nmkdir node_modules; ln -s /etc/passwd node_modules/x\n")
    (tools / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    spec = LayerSpec("tool", "1.0.0", npm=("tool@1.0.0",))
    with pytest.raises(InfrastructureError, match="leads out"):
        await LayerCache(tmp_path / "layers").built(spec, ROOT, lambda _line: None)


async def test_this_machine_has_a_kind() -> None:
    kind = await kind_of_host()
    assert kind.machine == os.uname().machine
    assert kind.cpu in ("x64", "arm64")


async def test_after_kill_9_in_the_middle_the_next_one_builds_it(tmp_path: Path, monkeypatch) -> None:
    cache, tools, started = tmp_path / "layers", tmp_path / "bin", tmp_path / "started"
    tools.mkdir()
    (tools / "npm").write_text(f"#!/bin/sh\nmkdir node_modules; echo $$ >{started}.new\n")
    with (tools / "npm").open("a") as npm:
        npm.write(f"mv {started}.new {started}; exec sleep 600\n")
    (tools / "npm").chmod(0o755)
    code = (
        "import asyncio; from pathlib import Path\n"
        "from valkyrie.agents.layers import LayerCache, RootKind\n"
        "from valkyrie.agents.protocol import LayerSpec\n"
        "root = RootKind('x86_64', 'glibc', '2.36', python='3.11', node=20)\n"
        "spec = LayerSpec('tool', '1.0.0', npm=('tool@1.0.0',))\n"
        f"asyncio.run(LayerCache(Path({str(cache)!r})).built(spec, root, print))\n"
    )
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    builder = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.DEVNULL)
    while not started.exists():
        await asyncio.sleep(0.01)
    builder.kill()
    builder.wait()
    os.kill(int(started.read_text()), signal.SIGKILL)
    assert len(list(cache.glob(".draft-*"))) == 1
    (tools / "npm").write_text("#!/bin/sh\nmkdir node_modules; echo whole >node_modules/whole\n")
    monkeypatch.setenv("PATH", env["PATH"])
    layer = await LayerCache(cache).built(
        LayerSpec("tool", "1.0.0", npm=("tool@1.0.0",)), ROOT, lambda _line: None
    )
    assert (layer / "node_modules" / "whole").read_text() == "whole\n"
    assert not list(cache.glob(".draft-*"))
    assert builds(cache) == [layer.name]


async def test_what_an_executor_is_started_with_reaches_the_tools(tmp_path: Path, monkeypatch) -> None:
    from valkyrie.executor.client import clean_environment

    seen = tmp_path / "seen"
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "npm").write_text(f"#!/bin/sh\nmkdir node_modules; env >{seen}\n")
    (tools / "npm").chmod(0o755)
    for name, value in {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "https_proxy": "http://proxy.example:3128",
        "NODE_EXTRA_CA_CERTS": "/etc/ca.pem",
        "npm_config_registry": "https://registry.example",
        "npm_config_//registry.example/:_authToken": "hunter2",
        "ANTHROPIC_API_KEY": "hunter2",
    }.items():
        monkeypatch.setenv(name, value)
    handed = clean_environment()
    assert "https_proxy" not in handed, "services on this machine are reached without a proxy"
    monkeypatch.setattr(os, "environ", handed)
    spec = LayerSpec("tool", "1.0.0", npm=("tool@1.0.0",))
    await LayerCache(tmp_path / "layers").built(spec, ROOT, lambda _line: None)
    found = seen.read_text()
    assert "https_proxy=http://proxy.example:3128\n" in found
    assert "NODE_EXTRA_CA_CERTS=/etc/ca.pem\n" in found
    assert "npm_config_registry=https://registry.example\n" in found
    assert "hunter2" not in found


@pytest.mark.parametrize("change", ["content", "compiled", "added", "removed", "mode", "link", "manifest"])
async def test_a_layer_that_was_changed_is_not_used(tmp_path: Path, change: str) -> None:
    layers, spec = LayerCache(tmp_path / "layers"), pip_spec(tmp_path)
    layer = await layers.built(spec, ROOT, lambda _line: None)
    module = layer / "python" / "hello.py"
    match change:
        case "content":
            module.write_text(module.read_text().replace("hello", "HELLO"))
        case "compiled":
            (layer / "python" / "__pycache__").mkdir(exist_ok=True)
            (layer / "python" / "__pycache__" / "hello.cpython-311.pyc").write_bytes(b"other code")
        case "added":
            (layer / "bin" / "node").write_text("#!/bin/sh\n")
        case "removed":
            module.unlink()
        case "mode":
            (layer / "bin" / "hello").chmod(0o644)
        case "link":
            module.unlink()
            module.symlink_to("/etc/hostname")
        case "manifest":
            (layer / "layer.json").write_text("{}")
    for asked in (layers, LayerCache(tmp_path / "layers")):
        with pytest.raises(UserError, match=r"not what was installed.*valk agent fetch tool") as caught:
            await asked.built(spec, ROOT, lambda _line: None)
        assert caught.value.cause == "agent_layer_changed"
    again = await layers.built(spec, ROOT, lambda _line: None, repair=True)
    assert again == await LayerCache(tmp_path / "layers").built(spec, ROOT, lambda _line: None) == layer
    assert "python says hello" in module.read_text()


async def test_a_layer_of_an_earlier_version_is_noted_down_once(tmp_path: Path) -> None:
    layers, spec = LayerCache(tmp_path / "layers"), pip_spec(tmp_path)
    layer = await layers.built(spec, ROOT, lambda _line: None)
    noted = read_manifest(layer)
    replace(noted, digest="").write(layer)
    assert await LayerCache(tmp_path / "layers").built(spec, ROOT, lambda _line: None) == layer
    assert read_manifest(layer) == noted
