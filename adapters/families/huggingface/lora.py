"""LoRA's matrices in an encoder of transformers (Hu et al. 2022, section 4.1), with the package `peft`."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path
from typing import Any

from meltpoint.adapters.families.huggingface.pretrained import quiet


class LoraMatrices:
    """Two thin matrices for each linear layer of a frozen model. This object is not a module of the model.

    Args:
        model: of transformers; its linear layers are replaced in place.
        rank: r; the matrices A and B of a layer of (out, in) weights are (r, in) and (out, r).
        alpha: the product B · A is scaled by alpha / r.
    """

    def __init__(self, model: Any, rank: int, alpha: int) -> None:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an older name
            self._adapted = get_peft_model(model, config)

    def save(self, folder: Path) -> None:
        """Write the matrices alone, as `peft.PeftModel.from_pretrained` loads them."""
        with quiet():
            self._adapted.save_pretrained(str(folder))

    def merged(self) -> Any:
        """A copy of the model with the matrices' products added to its weights."""
        return copy.deepcopy(self._adapted).merge_and_unload()


def name_without(name: str) -> str:
    """The name of a parameter before the matrices were added: that of the layer's own weight."""
    return re.sub(r"\.lora_[AB]\.default\.weight$", ".weight", name).replace(".base_layer.", ".")
