"""Docstrings as Markdown: their examples become blocks of code, and aligned names become a list."""

import re
from collections.abc import Iterable

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
NAMED = re.compile(r"^(\w+(?:, \w+)*) {2,}(\S.*(?:\n {4,}\S.*)*)$", re.MULTILINE)


def as_markdown(text: str, parameters: Iterable[str] = ()) -> str:
    """A docstring with its examples fenced, its aligned names listed, and each parameter on a line of its own.

    >>> as_markdown("a   the first,\\n    of two\\nbc  the second")
    '- `a`: the first, of two\\n- `bc`: the second'
    >>> print(as_markdown("Args:\\n    a: (M,K). b: (K,N).", ["a", "b"]))
    Args:
        a: (M,K).
        b: (K,N).
    """
    name = "|".join(parameters)
    if name:
        text = re.sub(rf"(?<=\.) ((?:{name})(?:, (?:{name}))*): ", r"\n    \1: ", text)
    text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    return NAMED.sub(lambda found: f"- `{found[1]}`: {' '.join(found[2].split())}", text)


class Docstrings(griffe.Extension):
    """Rewrites every docstring before its sections are told apart."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            parameters = [parameter.name for parameter in obj.parameters] if obj.is_function else []
            obj.docstring.value = as_markdown(obj.docstring.value, parameters)
