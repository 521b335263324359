"""Reads text from left to right; every failure shows the line and the place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from stagecut.ir.errors import GraphError

T = TypeVar("T")
_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


@lru_cache(maxsize=64)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


class Scanner:
    """A position in a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.skip_blank()

    def skip_blank(self) -> None:
        """Passes over white space and comments."""
        match = _BLANK.match(self.text, self.position)
        self.position = match.end() if match else self.position

    def take(self, token: str) -> bool:
        """Passes over `token` if it is next."""
        if not self.text.startswith(token, self.position):
            return False
        self.position += len(token)
        self.skip_blank()
        return True

    def expect(self, token: str) -> None:
        """Passes over `token`, which must be next."""
        if not self.take(token):
            raise self.error(f"expected {token!r}")

    def match(self, pattern: str) -> str | None:
        """Passes over what matches `pattern`, if it is next."""
        match = _pattern(pattern).match(self.text, self.position)
        if match is None:
            return None
        self.position = match.end()
        self.skip_blank()
        return match.group()

    def need(self, pattern: str, what: str) -> str:
        """Passes over what matches `pattern`, which must be next."""
        found = self.match(pattern)
        if found is None:
            raise self.error(f"expected {what}")
        return found

    def string(self) -> str:
        """Passes over a quoted string and gives its contents."""
        text: str = json.loads(self.need(_STRING.pattern, "a quoted string"))
        return text

    def until(self, closing: str) -> str:
        """Passes over everything up to `closing` at the same depth of brackets, and over it."""
        depth, start = 0, self.position
        for position in range(start, len(self.text)):
            character = self.text[position]
            if character == closing and depth == 0:
                self.position = position + 1
                self.skip_blank()
                return self.text[start:position]
            depth += (character in "([") - (character in ")]")
        raise self.error(f"no closing {closing!r}")

    def list_of(self, item: Callable[[], T], opening: str = "[", closing: str = "]") -> list[T]:
        """A bracketed, comma-separated list."""
        self.expect(opening)
        items: list[T] = []
        while not self.take(closing):
            items.append(item())
            if not self.take(","):
                self.expect(closing)
                break
        return items

    def error(self, message: str) -> GraphError:
        """The error that shows where the scanner stands."""
        line_start = self.text.rfind("\n", 0, self.position) + 1
        line_end = self.text.find("\n", self.position)
        line = self.text[line_start : line_end if line_end >= 0 else len(self.text)]
        number = self.text.count("\n", 0, self.position) + 1
        pointer = " " * (self.position - line_start) + "^"
        return GraphError(f"line {number} of the graph's text: {message}\n{line}\n{pointer}")
