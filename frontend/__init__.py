"""From a user's `nn.Module` to a `Graph`: tracing, lowering, the weight table, the trees."""

from stagecut.frontend.batch_first import sequence_first
from stagecut.frontend.deriving import derive_example
from stagecut.frontend.keeping import untouched
from stagecut.frontend.tracing import Traced, trace

__all__ = ["Traced", "derive_example", "sequence_first", "trace", "untouched"]
