"""From a graph and the stages of its ops to readable Python, and the export folder."""

from stagecut.codegen.generate import generate

__all__ = ["generate"]
