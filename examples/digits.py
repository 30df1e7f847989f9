"""A small training that is exactly repeatable: handwritten digits, one epoch a step.

It knows nothing of ScheduleMesh. scikit-learn is loaded when a training is made, not on import.
"""

from __future__ import annotations

import hashlib
from typing import Any

#: Images to learn from; the other 500 of the 1,797 bundled with scikit-learn are only judged.
TRAIN_IMAGES = 1297
#: Random features each image of 8 by 8 pixels is turned into.
FEATURES = 256

_DATA_SEED = 0  # the same split and features for every training: accuracies can be compared


class DigitsTraining:
    """Logistic regression on random Fourier features, trained by stochastic gradient descent.

    Every step is an epoch whose order follows from the seed and the step's number alone, and all sums run
    in a fixed order on one core. So a training that was stopped, written down as JSON and taken up
    elsewhere ends with the very weights it would have had.

    Args:
        seed: of the order in which images are seen.
    """

    def __init__(self, seed: int = 0) -> None:
        import numpy as np
        from sklearn.base import clone  # type: ignore[import-untyped]
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
        from sklearn.linear_model import SGDClassifier  # type: ignore[import-untyped]

        self.seed = seed
        self.step = 0
        rng = np.random.default_rng(_DATA_SEED)
        images, digits = load_digits(return_X_y=True)
        order = rng.permutation(len(images))
        weights = rng.normal(0.0, 0.3**0.5, (images.shape[1], FEATURES))
        phases = rng.uniform(0.0, 2 * np.pi, FEATURES)
        # Not "@": BLAS adds up in an order that depends on its number of threads.
        waves = np.einsum("ij,jk->ik", images[order] / 16.0, weights) + phases
        features, digits = (2.0 / FEATURES) ** 0.5 * np.cos(waves), digits[order]
        self._train = features[:TRAIN_IMAGES], digits[:TRAIN_IMAGES]
        self._test = features[TRAIN_IMAGES:], digits[TRAIN_IMAGES:]
        self._digits = np.unique(digits)
        self._untrained = SGDClassifier(
            loss="log_loss",
            alpha=1e-6,
            learning_rate="invscaling",  # shrinks with t_, which is therefore part of the state
            eta0=0.005,
            power_t=0.1,
            shuffle=False,  # we shuffle
            random_state=0,
        )
        self._model = clone(self._untrained)

    def train_step(self) -> None:
        """One epoch: some 10 ms."""
        import numpy as np

        features, digits = self._train
        order = np.random.default_rng([self.seed, self.step]).permutation(len(digits))
        self._model.partial_fit(features[order], digits[order], classes=self._digits)
        self.step += 1

    def accuracy(self) -> float:
        """Share of the unseen images it reads rightly, 0 to 1; 0 before the first step."""
        return float(self._model.score(*self._test)) if self.step else 0.0

    def state(self) -> dict[str, Any]:
        """All that the next step depends on, as JSON: some 50 kB."""
        state: dict[str, Any] = {"seed": self.seed, "step": self.step}
        if self.step:
            state["coef_"] = self._model.coef_.tolist()
            state["intercept_"] = self._model.intercept_.tolist()
            state["t_"] = float(self._model.t_)
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state` gave."""
        import numpy as np
        from sklearn.base import clone

        self.seed, self.step = int(state["seed"]), int(state["step"])
        self._model = clone(self._untrained)
        if self.step:
            self._model.classes_ = self._digits
            self._model.coef_ = np.array(state["coef_"], dtype=np.float64)
            self._model.intercept_ = np.array(state["intercept_"], dtype=np.float64)
            self._model.t_ = float(state["t_"])

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that two trainings share only when all their weights are equal."""
        digest = hashlib.sha256(str(self.step).encode())
        if self.step:
            for weights in (self._model.coef_, self._model.intercept_):
                digest.update((weights + 0.0).astype("<f8").tobytes())  # + 0.0: there is one zero, not two
        return digest.hexdigest()[:12]
