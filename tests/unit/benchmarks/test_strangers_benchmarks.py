"""What someone who is not on this machine may name as a benchmark, and what goes there with it."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.unit.benchmarks.task_folders import WriteTask
from valkyrie import plugins
from valkyrie.benchmarks import open_benchmark, pack_upload
from valkyrie.benchmarks.protocol import BenchmarkRequest
from valkyrie.benchmarks.service import address
from valkyrie.config import values
from valkyrie.errors import BenchmarkError, UsageError, UserError

CALLERS = {"Authorization": "Bearer caller"}


@pytest.fixture(autouse=True)
def the_operators_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    monkeypatch.delenv("BENCHMARK_SERVICE_BASE_URL", raising=False)
    monkeypatch.delenv("VALKYRIE_SERVICE_REGISTRY", raising=False)
    monkeypatch.setattr(address, "LOCAL_URL", "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    values.set_entry("custom_benchmark_services", "math", "http://ours.example")
    values.set_entry("benchmark_auth", "math", "Bearer operator")
    values.set_entry("benchmark_auth", "away.example", "Bearer operator")


@pytest.mark.parametrize(
    "spec",
    [
        "./tasks",
        "tasks/",
        "/etc",
        "..",
        ".",
        "~",
        "~root",
        "../x",
        "tasks.zip",
        "a/b",
        "touching:Touch",
        "touching.deep:Touch.x",
        "upload:abc",
        "file:///etc",
    ],
)
def test_this_machines_own_is_refused_before_it_is_touched(
    spec: str, tmp_path: Path, write_task: WriteTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task("a")
    (tmp_path / "touching.py").write_text("import pathlib\npathlib.Path('touched').touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match="not taken from elsewhere"):
        open_benchmark(spec, BenchmarkRequest(trusted=False))
    assert not (tmp_path / "touched").exists()


def test_a_folder_of_the_server_is_no_benchmark_by_its_bare_name(write_task: WriteTask) -> None:
    write_task("a")
    assert open_benchmark("tasks").name == "tasks"
    with pytest.raises(UsageError, match="unknown benchmark 'tasks'; there is quickstart") as caught:
        open_benchmark("tasks", BenchmarkRequest(trusted=False))
    assert "path" not in str(caught.value)


def test_what_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_benchmark("quickstart", BenchmarkRequest(trusted=False)).source["kind"] == "task_dir"
    (tmp_path / "registry.yaml").write_text("chess: https://chess.example\n")
    values.set_value("service_registry", str(tmp_path / "registry.yaml"))
    values.set_value("service_base_url", "bench.example")
    for spec, url in (
        ("math", "http://ours.example"),
        ("chess", "https://chess.example"),
        ("other", "https://other.bench.example"),
        ("https://away.example", "https://away.example"),
    ):
        assert open_benchmark(spec, BenchmarkRequest(trusted=False)).source["url"] == url


def test_plugins_the_operator_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "names", lambda group: ["installed"])
    monkeypatch.setattr(plugins, "load", lambda name, group: lambda: open_benchmark("quickstart"))
    assert open_benchmark("installed", BenchmarkRequest(trusted=False)).name == "quickstart"


def test_the_servers_credential_goes_only_where_its_own_config_says() -> None:
    def sent(spec: str, **options: object) -> dict[str, str]:
        benchmark = open_benchmark(spec, BenchmarkRequest(trusted=False, **options))  # type: ignore[arg-type]
        return benchmark.headers  # type: ignore[attr-defined, no-any-return]

    assert sent("math") == {"Authorization": "Bearer operator"}
    assert sent("math", headers=CALLERS) == CALLERS
    assert sent("math", url="https://evil.example") == {}
    assert sent("math", url="https://evil.example", headers=CALLERS) == CALLERS
    assert sent("https://away.example") == {}
    assert sent("math", url="https://evil.example", ignore_custom=False) == {}


def test_a_callers_own_service_of_a_name() -> None:
    benchmark = open_benchmark("math", BenchmarkRequest(url="https://mine.example/", trusted=False))
    assert (benchmark.name, benchmark.source["url"]) == ("math", "https://mine.example")
    assert benchmark.source["where"] == "custom"
    assert (
        open_benchmark("quickstart", BenchmarkRequest(url="https://mine.example", trusted=False)).source[
            "kind"
        ]
        == "service"
    )
    ignoring = open_benchmark(
        "quickstart", BenchmarkRequest(url="https://mine.example", ignore_custom=True, trusted=False)
    )
    assert ignoring.source["kind"] == "task_dir"
    for spec, url in (("math", "file:///etc"), ("math", "https://a:b@x"), ("../x", "https://mine.example")):
        with pytest.raises(UsageError):
            open_benchmark(spec, BenchmarkRequest(url=url, trusted=False))


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Something on this machine that says it is the service meant."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = b'{"service_name": "chess"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        monkeypatch.setattr(address, "LOCAL_URL", f"http://127.0.0.1:{server.server_address[1]}")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield asked
        server.shutdown()
        thread.join()


def test_strangers_are_not_led_to_what_listens_here(listener: list[str]) -> None:
    assert open_benchmark("chess").source["where"] == "this machine"
    listener.clear()
    with pytest.raises(UsageError, match="unknown benchmark 'chess'"):
        open_benchmark("chess", BenchmarkRequest(trusted=False))
    assert listener == []


async def test_a_strangers_task_sees_nothing_of_the_environment(
    write_task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", "hush-hush")
    write_task("a", {"task.toml": '[environment.env]\nGIVEN = "${SERVER_KEY}"\n'})
    digest = pack_upload(tmp_path / "tasks", tmp_path / "a.zip")
    ours = open_benchmark(str(tmp_path / "tasks"), BenchmarkRequest(host_env={"SERVER_KEY": "hush-hush"}))
    assert (await ours.describe("a")).env == {"GIVEN": "hush-hush"}
    with pytest.raises(UserError, match="--pass-env SERVER_KEY"):
        await open_benchmark(str(tmp_path / "tasks")).describe("a")
    theirs = open_benchmark(
        f"upload:{digest}",
        BenchmarkRequest(trusted=False, uploads=lambda _: tmp_path / "a.zip", cache=tmp_path / "cache"),
    )
    with pytest.raises(UserError, match="SERVER_KEY") as caught:
        await theirs.describe("a")
    assert "hush-hush" not in str(caught.value)


async def test_a_strangers_broken_task_is_told_without_the_servers_folders(
    write_task: WriteTask, tmp_path: Path
) -> None:
    write_task("a", {"task.toml": "[broken"})
    digest = pack_upload(tmp_path / "tasks", tmp_path / "a.zip")
    theirs = open_benchmark(
        f"upload:{digest}",
        BenchmarkRequest(trusted=False, uploads=lambda _: tmp_path / "a.zip", cache=tmp_path / "cache"),
    )
    with pytest.raises(BenchmarkError, match=r"tasks/a/task\.toml") as caught:
        await theirs.describe("a")
    assert str(tmp_path) not in str(caught.value)
