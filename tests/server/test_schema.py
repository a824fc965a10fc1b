"""The HTTP API conforms to its OpenAPI description for any request."""

from __future__ import annotations

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serving import Running

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_the_description_holds(running: Running) -> None:
    schema = schemathesis.openapi.from_url(f"{running.http}/openapi.json")
    seen = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        seen.add(operation.label)

        @given(case=operation.as_strategy())
        @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
        def holds(case: Case) -> None:
            case.call_and_validate(checks=CHECKS)

        holds()
    assert {"GET /readyz", "GET /metrics", "GET /v1/models", "POST /v1/audio/transcriptions"} <= seen
