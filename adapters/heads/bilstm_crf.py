"""A BiLSTM over all subword tokens, and a CRF over the words' labels (Lample et al. 2016; ELMo's model for NER)."""

from __future__ import annotations

from meltpoint.adapters.heads.bilstm import BiLstm
from meltpoint.adapters.heads.crf import CrfHead


class BiLstmCrf(CrfHead, BiLstm):
    """The `bilstm` head with labels scored as a path; supports labels of words only."""

    summary = "BiLSTM over all pieces → each word's first piece → linear → conditional random field"


HEAD = BiLstmCrf
