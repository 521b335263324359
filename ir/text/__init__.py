"""The text form of a graph: `print_graph` and `parse_graph` are exact inverses."""

from stagecut.ir.text.parser import parse_graph
from stagecut.ir.text.printer import print_graph, print_op

__all__ = ["parse_graph", "print_graph", "print_op"]
