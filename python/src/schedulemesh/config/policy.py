"""How eager preemption is, in words."""

from __future__ import annotations

import logging
import os
from enum import Enum

log = logging.getLogger("schedulemesh")


class PreemptionAggressiveness(str, Enum):
    """How readily running tasks make way.

    Each level stands for two thresholds, in units of priority: ``HIGH`` 0.1 by label and 0.5 within a pool,
    ``MEDIUM`` 0.5 and 1.0 (the default), ``LOW`` 1.0 and 3.0.
    """

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    @property
    def label_threshold(self) -> float:
        """``label_priority_threshold`` at this level."""
        return _THRESHOLDS[self][0]

    @property
    def same_pool_threshold(self) -> float:
        """``same_pool_priority_threshold`` at this level."""
        return _THRESHOLDS[self][1]

    @classmethod
    def parse(cls, word: str | PreemptionAggressiveness | None) -> PreemptionAggressiveness | None:
        """The level a word means, in any case: a level, an alias of one, or ``env:NAME`` for the word in an
        environment variable. None, with a warning in the log, when it means nothing.

        Raises:
            TypeError: it is neither text nor a level.
        """
        if word is None or isinstance(word, cls):
            return word
        if not isinstance(word, str):
            raise TypeError(
                f"preemption_aggressiveness is a {type(word).__name__}; give a PreemptionAggressiveness, "
                'a word such as "high", or "env:NAME"'
            )
        source, text = repr(word), word
        if word.strip().lower().startswith("env:"):
            name = word.strip()[4:].strip()
            text = os.environ.get(name, "")
            if not text:
                log.warning(
                    "preemption_aggressiveness %s: environment variable %s is not set; nothing is changed",
                    source,
                    name or "with no name",
                )
                return None
            source = f"{source} ({text!r})"
        level = _WORDS.get(text.strip().lower())
        if level is None:
            log.warning(
                "preemption_aggressiveness %s is not known; nothing is changed. Known are %s",
                source,
                ", ".join(_WORDS),
            )
            return None
        log.info(
            "preemption_aggressiveness %s means %s: thresholds %g by label, %g within a pool",
            source,
            level.name,
            level.label_threshold,
            level.same_pool_threshold,
        )
        return level


_THRESHOLDS = {
    PreemptionAggressiveness.HIGH: (0.1, 0.5),
    PreemptionAggressiveness.MEDIUM: (0.5, 1.0),
    PreemptionAggressiveness.LOW: (1.0, 3.0),
}

_WORDS = {
    word: level
    for level, words in {
        PreemptionAggressiveness.HIGH: ("high", "urgent", "critical", "prod"),
        PreemptionAggressiveness.MEDIUM: ("medium", "default", "normal"),
        PreemptionAggressiveness.LOW: ("low", "background", "batch"),
    }.items()
    for word in words
}
