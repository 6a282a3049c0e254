"""From an agent's folder and a service to the files of a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmark_runner.client import build_client
from benchmark_runner.llm import without_credentials
from benchmark_runner.sandbox.bundle import Bundle, load_bundle, pack_bundle
from benchmark_runner.sandbox.contract import AgentContract, load_contract
from benchmark_runner.sandbox.manifest import BundlePin, Manifest, generate_manifest
from benchmark_runner.sandbox.yaml_files import write_whole, write_yaml


def agent_in(contract: Path, agent_bundle: Path | None = None) -> tuple[AgentContract, Bundle | None]:
    """A contract from its file or its agent's folder; a folder is also the bundle, where none is named."""
    loaded = load_contract(contract)
    source = agent_bundle or (contract if contract.is_dir() else None)
    if source is None:
        return loaded, None
    return loaded, pack_bundle(source, loaded.name) if source.is_dir() else load_bundle(source)


async def write_manifest(
    output: Path,
    *,
    service_url: str,
    dataset: str,
    contract: Path,
    benchmark: str,
    required_env: Sequence[str] = (),
    agent_bundle: Path | None = None,
) -> Manifest:
    """Write a manifest, and the agent's bundle beside it."""
    loaded, bundle = agent_in(contract, agent_bundle)
    pin = BundlePin(file=f"{benchmark}.bundle.zip", sha256=bundle.sha256) if bundle else None
    async with build_client(service_url) as client:
        made = await generate_manifest(
            client=client,
            service_url=without_credentials(service_url),
            dataset=dataset,
            contract=loaded,
            benchmark=benchmark,
            bundle=pin,
            required_env=required_env,
        )
    if bundle is not None and pin is not None:
        write_whole(output.parent / pin.file, bundle.content)
    write_yaml(output, made.model_dump(mode="json"))
    return made
