from __future__ import annotations

from torch import nn

from stagecut.frontend import sequence_first


def test_modules_that_take_sequences_first_are_noted() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    (note,) = sequence_first(nn.Sequential(nn.Linear(8, 8), layer))
    assert note.startswith("1.self_attn (MultiheadAttention) has batch_first=False")
    assert "must be the batch" in note
    (note,) = sequence_first(nn.LSTM(4, 4))
    assert note.startswith("the model (LSTM) has batch_first=False")
    assert sequence_first(nn.Sequential(nn.LSTM(4, 4, batch_first=True), nn.ReLU())) == ()
