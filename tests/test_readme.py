"""The README's examples give what they say, its tables are the records', and its links lead somewhere."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
OPERATIONS = ["gemmt", "trmm", "syrk", "causal_scores", "causal_scores_qkvpacked"]


def test_examples_run_and_print_what_the_readme_says():
    code = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    example = doctest.DocTestParser().get_doctest(code, {}, "README", "README.md", 0)
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=report.append)
    assert result.failed == 0, "".join(report)
    for operation in OPERATIONS:
        assert f"trigemm.{operation}(" in code


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_to_files(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
