"""Words for how eager preemption is."""

from __future__ import annotations

import logging

import pytest

from schedulemesh.config.policy import PreemptionAggressiveness as Level


@pytest.mark.parametrize(
    ("level", "words", "label", "same_pool"),
    [
        (Level.HIGH, ["high", "urgent", "critical", "prod", "HIGH", " Prod "], 0.1, 0.5),
        (Level.MEDIUM, ["medium", "default", "normal", "Normal"], 0.5, 1.0),
        (Level.LOW, ["low", "background", "batch"], 1.0, 3.0),
    ],
)
def test_words_and_their_thresholds(level: Level, words: list[str], label: float, same_pool: float) -> None:
    for word in words:
        assert Level.parse(word) is level
    assert (level.label_threshold, level.same_pool_threshold) == (label, same_pool)


def test_a_word_may_come_from_the_environment_and_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "schedulemesh")
    monkeypatch.setenv("LEVEL_OF_TODAY", "urgent")
    assert Level.parse("env:LEVEL_OF_TODAY") is Level.HIGH
    assert "means HIGH" in caplog.text


@pytest.mark.parametrize("word", ["env:NOT_SET_ANYWHERE", "env:", "eager", ""])
def test_what_means_nothing_changes_nothing_and_warns(word: str, caplog: pytest.LogCaptureFixture) -> None:
    assert Level.parse(word) is None
    assert "nothing is changed" in caplog.text


def test_a_wrong_value_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LEVEL_OF_TODAY", "eager")
    assert Level.parse("env:LEVEL_OF_TODAY") is None
    assert "'eager'" in caplog.text


def test_other_types_are_refused() -> None:
    assert Level.parse(None) is None
    with pytest.raises(TypeError, match="int"):
        Level.parse(3)  # type: ignore[arg-type]
