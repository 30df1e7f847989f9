"""Specs for a smaller cluster, against a cluster that is said to be so large."""

from __future__ import annotations

from typing import Any

import pytest

from schedulemesh import scaling
from schedulemesh.errors import InvalidArgument


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    there = {"cpu": 3.5, "memory": 8192.0}
    monkeypatch.setattr(scaling, "_cluster", lambda: there)
    return there


def test_what_fits_stays_as_it_is(cluster: dict[str, float]) -> None:
    specs = {"train": {"cpu": 2.0, "memory": 2048.0}, "groups": [{"cpu": 1.5, "memory": 1024}]}
    assert scaling.scale_to_cluster(specs) == specs


def test_what_is_too_large_shrinks_in_proportion_each_resource_by_itself(cluster: dict[str, float]) -> None:
    specs = {"train": {"cpu": 2.0, "memory": 2048.0}, "groups": [{"cpu": 1.5, "memory": 1024}], "name": "x"}
    assert scaling.scale_to_cluster(specs, {"cpu": 7.0, "memory": 6144.0}) == {
        "train": {"cpu": 1.0, "memory": 2048.0},
        "groups": [{"cpu": 0.75, "memory": 1024}],
        "name": "x",
    }


def test_nothing_shrinks_to_nothing(cluster: dict[str, float]) -> None:
    assert scaling.scale_to_cluster({"cpu": 0.01, "memory": 1}, {"cpu": 1000.0, "memory": 1e9}) == {
        "cpu": 0.01,
        "memory": 1.0,
    }


def test_a_resource_that_is_not_there_is_said(cluster: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match="no gpu, of which 2 is needed"):
        scaling.scale_to_cluster([{"gpu": 2}])


@pytest.mark.parametrize("specs", [{}, [], {"enable": True}, "text", None])
def test_what_has_no_amounts_is_left_alone(cluster: dict[str, float], specs: Any) -> None:
    assert scaling.scale_to_cluster(specs) == specs
