"""Which commands a job may have. The server refuses the same ones, with the same words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schedulemesh.entrypoints import check_entrypoint
from schedulemesh.errors import InvalidArgument

VECTORS = json.loads(
    (Path(__file__).resolve().parents[2] / "jobs/testdata/entrypoints.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: ascii(v["entrypoint"])[:40])
def test_as_the_server_sees_it(vector: dict[str, Any]) -> None:
    entrypoint = vector["entrypoint"] * vector.get("times", 1)
    if "error" not in vector:
        check_entrypoint(entrypoint)
        return
    with pytest.raises(InvalidArgument) as refused:
        check_entrypoint(entrypoint)
    assert isinstance(refused.value, ValueError)
    assert str(refused.value) == vector["error"]


@pytest.mark.parametrize(
    "entrypoint", [None, 7, b"python /a/x.py", ["python", "/a/x.py"], "python /a/\ud800"]
)
def test_what_is_no_text(entrypoint: Any) -> None:
    with pytest.raises(InvalidArgument, match="entrypoint"):
        check_entrypoint(entrypoint)
