"""The agent of the training demo: it trains, stops when asked to, and goes on where it stopped."""

from __future__ import annotations

import threading
import time
from typing import Any

from examples.digits import DigitsTraining
from schedulemesh.core.agents import MetricsReportingAgent

#: Every so many steps it says how far it is.
REPORT_EVERY = 50


class TrainingAgentActor(MetricsReportingAgent):
    """Trains a classifier of handwritten digits: when its task's entry calls ``train``, or by itself, in a
    thread of its own, when it was given a supervisor to report to.

    Args:
        name: the agent's name.
        labels: ``training_stage`` among them says what this training is called.
        supervisor: what ``scheduler.supervisor_handle()`` gave.
        report_interval: seconds between reports of figures, at least; 0 for one every
            :data:`REPORT_EVERY` steps.
        steps: how many epochs make the training.
        seed: two trainings with the same seed see the images in the same order.
        **kwargs: kept as ``self.options``.
    """

    def __init__(
        self,
        name: str,
        labels: dict[str, str] | None = None,
        supervisor: Any = None,
        report_interval: float = 0.0,
        steps: int = 1200,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, labels, supervisor=supervisor, report_interval=report_interval, **kwargs)
        self.steps = steps
        self.training = DigitsTraining(seed)
        self.resumed_from = 0
        # Held for a step: what is saved while a step runs is the state after it, never half of it.
        self._stepping = threading.Lock()
        if supervisor is not None:
            threading.Thread(target=self.train, name="training", daemon=True).start()

    def train(self, task_id: str | None = None) -> dict[str, Any]:
        """Train until all steps are made or ``cancel(task_id)`` is called; without an id, any cancel counts.

        Returns:
            ``{"status": "completed" | "cancelled", "stage", "step", "steps", "resumed_from", "accuracy",
            "fingerprint", "seconds"}``; ``accuracy`` from 0 to 1 on images it never saw, ``seconds`` of
            this attempt.
        """
        started = time.monotonic()
        while self.training.step < self.steps and not self.is_cancelled(task_id):
            with self._stepping:
                self.training.train_step()
            if self.training.step % REPORT_EVERY == 0:
                self._report()
        with self._stepping:
            step, accuracy = self.training.step, self.training.accuracy()
            fingerprint = self.training.fingerprint()
        status = "completed" if step >= self.steps else "cancelled"
        print(f"{status} at step {step} of {self.steps}, accuracy {accuracy:.3f}", flush=True)
        return {
            "status": status,
            "stage": self.labels.get("training_stage", ""),
            "step": step,
            "steps": self.steps,
            "resumed_from": self.resumed_from,
            "accuracy": accuracy,
            "fingerprint": fingerprint,
            "seconds": round(time.monotonic() - started, 3),
        }

    def save_state(self) -> dict[str, Any]:
        """The weights and all else the next step depends on, and how good they are."""
        with self._stepping:
            return {**super().save_state(), **self.training.state(), "accuracy": self.training.accuracy()}

    def restore_state(self, state: dict[str, Any]) -> None:
        super().restore_state(state)
        with self._stepping:  # it may train already
            self.training.load(state)
            self.resumed_from = self.training.step
        print(f"resumes from step {self.resumed_from} of {self.steps}", flush=True)

    def _report(self) -> None:
        with self._stepping:
            step, accuracy = self.training.step, self.training.accuracy()
        print(f"step {step} of {self.steps}, accuracy {accuracy:.3f}", flush=True)
        self.report_metrics({"step": step, "steps": self.steps, "accuracy": accuracy})
