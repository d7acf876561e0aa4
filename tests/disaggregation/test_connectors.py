"""The table of connectors speaks of exactly those that the installed vLLM registers."""

from __future__ import annotations

import pytest

from utils.disaggregation import connectors
from utils.disaggregation.connectors import CONNECTORS, connector_table, registered_connectors


def test_the_names_are_those_of_vllms_factory() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    assert registered_connectors() == list(KVConnectorFactory._registry)
    ours = [name for connector in CONNECTORS for name in connector.names]
    assert sorted(ours) == sorted(KVConnectorFactory._registry)


def test_a_name_that_is_not_there_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    table = connector_table()
    assert "`MultiConnector`" in table and "not in this version" not in table
    monkeypatch.setattr(connectors, "registered_connectors", lambda: ["MultiConnector"])
    table = connector_table()
    assert "`MultiConnector` |" in table and "`NixlConnector` (not in this version)" in table
