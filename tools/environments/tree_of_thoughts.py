"""The data files of the package `tree-of-thoughts-llm` (Yao et al., 2023, arXiv:2305.10601; MIT), found without importing it.

`pip install --no-deps tree-of-thoughts-llm`: its own requirements are exact versions of 2023 (openai 0.27.7, numpy 1.24.3,
sympy 1.12 and sixteen more) that conflict with every present LangChain, so there is no extra for it. Only two of its files are read.
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

__all__ = []

INSTALL = "pip install --no-deps tree-of-thoughts-llm"


def tree_of_thoughts_file(name: str) -> Path | None:
    """The path of a data file of the installed package, e.g. `24/24.csv`; None if the package or the file is missing."""
    try:
        path = Path(str(distribution("tree-of-thoughts-llm").locate_file(f"tot/data/{name}")))
    except PackageNotFoundError:
        return None
    return path if path.is_file() else None
