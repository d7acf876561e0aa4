"""The values for Kubernetes: names that the chart knows, and what they share with the image."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "zero-to-jupyterhub"
NAMES = yaml.safe_load(Path(__file__).with_name("z2jh_names.yaml").read_text())
DOCKERFILE = (ROOT / "deploy" / "image" / "Dockerfile").read_text()


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """As Helm merges files of values: maps are joined, anything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(merged.get(key), dict) and isinstance(value, dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


@pytest.fixture
def values() -> dict[str, Any]:
    course, site = (
        yaml.safe_load((FOLDER / name).read_text()) for name in ("values.yaml", "site.example.yaml")
    )
    return merge(course, site)


def mistakes(values: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft7Validator(NAMES)
    return [error.message for error in validator.iter_errors(values)]


def test_the_chart_knows_every_setting(values: dict[str, Any]) -> None:
    jsonschema.Draft7Validator.check_schema(NAMES)
    assert mistakes(values) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("singleuser.memory.limits", "4G"),
        ("singleuser.cpu.limit", "2"),
        ("cull.enabled", "yes"),
        ("singleuser.extraEnv.OMP_NUM_THREADS", 2),
        ("scheduling.userPlaceholders.replicas", 3),
        ("singleuser.storage.type", "nfs"),
    ],
)
def test_a_slip_is_found(values: dict[str, Any], path: str, value: object) -> None:
    wrong = copy.deepcopy(values)
    *parents, name = path.split(".")
    place = wrong
    for parent in parents:
        place = place.setdefault(parent, {})
    place[name] = value
    assert len(mistakes(wrong)) == 1


def test_without_a_site_nobody_may_log_in() -> None:
    course = yaml.safe_load((FOLDER / "values.yaml").read_text())
    assert "config" not in course["hub"]  # no authenticator, nobody allowed: the chart's default
    assert "allow_all" not in (FOLDER / "values.yaml").read_text()


def test_classes_and_options_of_the_login_are_those_of_jupyterhub(values: dict[str, Any]) -> None:
    assert set(values["hub"]["config"]) == {"JupyterHub", "GenericOAuthenticator", "Authenticator"}
    assert values["hub"]["config"]["JupyterHub"] == {"authenticator_class": "generic-oauth"}
    callback = values["hub"]["config"]["GenericOAuthenticator"]["oauth_callback_url"]
    assert callback == f"https://{values['proxy']['https']['hosts'][0]}/hub/oauth_callback"


def test_a_learner_is_the_images_user_and_runs_its_command(values: dict[str, Any]) -> None:
    learner = values["singleuser"]
    assert f"--uid {learner['uid']} --gid users" in DOCKERFILE
    assert f"USER {learner['uid']}" in DOCKERFILE
    assert f"--chown={learner['uid']}:{learner['fsGid']}" in DOCKERFILE
    assert f"WORKDIR {learner['storage']['homeMountPath']}" in DOCKERFILE
    assert f"CMD {json.dumps(learner['cmd'])}" in DOCKERFILE
    assert not learner["allowPrivilegeEscalation"]
    assert float(learner["extraEnv"]["OMP_NUM_THREADS"]) == learner["cpu"]["limit"]


def test_a_learner_has_the_memory_that_lessons_were_seen_to_take(values: dict[str, Any]) -> None:
    report = json.loads((ROOT / "deploy/jupyterhub/memory.json").read_text())
    largest = max(
        sum(row[key] for key in ("own_bytes", "file_bytes")) for row in report["notebooks"].values()
    )
    limit = values["singleuser"]["memory"]["limit"]
    assert largest + report["server"]["own_bytes"] < float(limit.removesuffix("G")) * 2**30


def test_hub_and_image_have_one_major_version() -> None:
    lock = (ROOT / "requirements" / "hub.lock").read_text()
    chart = re.search(r"--version (\d+)\.\d+\.\d+ ", (FOLDER / "README.md").read_text())
    assert chart and chart[1] == "4"
    assert re.search(r"^jupyterhub==5\.", lock, re.M)  # the chart's version 4 runs JupyterHub 5
