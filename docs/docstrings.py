"""Docstrings as Markdown: their examples become blocks of code, and aligned names become a list."""

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
NAMED = re.compile(r"^(\w+(?:, \w+)*) {2,}(\S.*(?:\n {4,}\S.*)*)$", re.MULTILINE)


def as_markdown(text: str) -> str:
    """A docstring with its examples fenced and its aligned names listed.

    >>> as_markdown("a   the first,\\n    of two\\nbc  the second")
    '- `a`: the first, of two\\n- `bc`: the second'
    """
    text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    return NAMED.sub(lambda found: f"- `{found[1]}`: {' '.join(found[2].split())}", text)


class Docstrings(griffe.Extension):
    """Rewrites every docstring before its sections are told apart."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
