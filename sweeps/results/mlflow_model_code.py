"""The code of a finalist as an MLflow model. MLflow runs this file to load one (models from code, no pickle).

The loading process needs this package; `sweeps.results.mlflow_model` writes such models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlflow
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from meltpoint.sweeps.results.mlflow_model import ARTIFACT
from meltpoint.sweeps.results.predicting import texts_of

if TYPE_CHECKING:
    import pandas


class Finalist(PythonModel):
    """A finalist that predicts label names, scores, or a list of label names per text."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the exported model on the CPU."""
        from meltpoint.adapters.exported_model import load_folder  # imports torch, which takes seconds

        self.model = load_folder(context.artifacts[ARTIFACT])

    def predict(
        self, context: PythonModelContext, model_input: pandas.DataFrame, params: dict[str, Any] | None = None
    ) -> pandas.DataFrame:
        """Return a column `prediction`, and for text classification a column `probability.LABEL` per label.

        Args:
            context: MLflow's context.
            model_input: one text per row, in the column `text`; pairs in `text_a` and `text_b`; lists of words in
                `words`.
            params: ignored.

        Raises:
            ValueError: a text column is missing, or a text does not fit.
        """
        import pandas as pd

        texts = texts_of(self.model, model_input)
        if not self.model.gives_probabilities:
            return pd.DataFrame({"prediction": self.model.predict(texts)})
        predicted, shares = self.model.predict_both(texts)
        found = {f"probability.{name}": shares[:, place] for place, name in enumerate(self.model.task.labels)}
        return pd.DataFrame({"prediction": predicted, **found})


mlflow.models.set_model(Finalist())
