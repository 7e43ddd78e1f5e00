"""The programs of docs/guides/embedding.md and docs/guides/embedding_rows.md, in one process."""

from __future__ import annotations

import os
import re
from pathlib import Path

from support.processes.ranks import on_ranks

GUIDES = Path(__file__).parents[3] / "docs/guides"


def programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (GUIDES / page).read_text(), re.DOTALL)


@on_ranks(1)
def test_the_programs_of_the_pages(ctx):
    first, _, fields, loop = programs("embedding.md")
    (by_id,) = programs("embedding_rows.md")
    del os.environ["TF_CONFIG"]  # alone, as a reader runs the programs
    printed = []
    names = {"print": lambda *values: printed.append([str(value) for value in values])}
    exec(first + fields, names)
    assert tuple(names["fields"].output.shape) == (None, 3, 8)
    assert names["fields"].table.size() == 6
    names["tf"] = __import__("tensorflow")
    exec(loop, names)
    loss = [float(names["step"](names["tf"].constant(["ann"]), 1.0)) for _ in range(3)]
    assert loss[-1] < loss[0]
    exec(by_id, names)
    (contained, size), (fetched,) = printed
    assert "[ True False]" in contained
    assert "2" in size
    assert "[1. 0.]" in fetched
    assert names["users"].size() == 0


@on_ranks(2)
def test_the_program_for_tables_on_the_workers(ctx):
    names = {}
    exec(programs("embedding.md")[1], names)
    assert names["row"].shape == (None, 16)
    assert names["model"].layers[1].table.size() == 2
