"""The prose of comments, docstrings, messages and pages: a subject, a verb, the field's noun."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
BEGIN = r"(?:^|(?<=[.!?:] ))[*(\"]*"  # of a sentence


class Pattern(NamedTuple):
    regex: str
    better: str
    bad: str
    good: str


PATTERNS = [
    Pattern(
        BEGIN + r"(?i:what|who|whom|whose|whatever|whoever)\b(?![^.!?]*\?)",
        "begin with the noun",
        "What a thread waits with.",
        "Event loop over epoll(7). What is an epoch?",
    ),
    Pattern(
        BEGIN + r"(?:One|Ones) (?:in|with|from)\b"
        r"|\b(?:[Oo]ne|[Oo]nes|[Tt]hose) (?:that|which|who)\b"
        r"|\b[Tt]hose (?:of|in|with|from|on)\b|\b[Tt]hat of\b",
        "name the noun again",
        "One that never connected holds its port, and that of its peer.",
        "An engine that never connected holds its port. One of the ranks ends.",
    ),
    Pattern(
        r"\bas of (?!v?\d|[A-Z]\w+ \d|\w+ \d)",
        '"as in", or "like"',
        "durability: as of the parameter server",
        "durability: as in the parameter server, as of TensorFlow 2.18",
    ),
    Pattern(r"\bbut for\b", '"except"', "Equal, but for the blocks.", "Equal, except the blocks."),
    Pattern(r"\balike\b", '"equal" or "the same"', "All have them alike.", "All have the same."),
    Pattern(
        r"(?i)\bnobody\b",
        'the noun: "no rank", "no thread", "no caller"',
        "Nobody waits for replies.",
        "No thread waits for replies.",
    ),
    Pattern(
        BEGIN + r"And ",
        "join the sentences, or begin with the subject",
        "It ends. And restarts.",
        "It ends and restarts.",
    ),
    Pattern(
        r"\b(?:with|of|by|from|for|in|to|at|than|as|on) (?:what|whom|who)\b"
        r"|\b(?:is|are|has|have|does|knows?|tells?|says?) what\b",
        "name the noun",
        "It knows what has failed, of whom it asks.",
        "It knows the failed rank.",
    ),
    Pattern(
        r"\b(?:[Aa]side|[Mm]eetings?|[Ll]end(?:s|ing)?|[Ll]ent)\b",
        '"apart" or "separate", "rendezvous", "expose" or "share"',
        "The meeting lends its rows.",
        "The rendezvous exposes its rows.",
    ),
    Pattern(
        r"\bat the most\b|\b(?:the|its|a|no|this) most (?:of|for|that|is|are|was|a|an|it)\b",
        '"at most", "limit"',
        "It waits for 3 s at the most.",
        "It waits for 3 s at most. It takes most of the time.",
    ),
    Pattern(
        r"\b(?:found|founds|founding|founded) (?:a|an|the|its|another|one) (?:job|group|generation)"
        r"|\bfounded\b"
        r"|\b(?:jobs?|generations?) (?:is|are|was|were) found\b"
        r"|\b(?:failures?|faults?|deaths?|loss) (?:is|are|was|were) found\b",
        '"form" a job, "detect" a failure',
        "Two ranks found a job, and a failure is found.",
        "Two ranks form a job and detect a failure. A file is found.",
    ),
    Pattern(r", too,", '"also"', "It closes, too, its socket.", "It also closes its socket."),
    Pattern(
        r"\b(?:go|goes|went|going|gone) on\b",
        '"continue"',
        "The training goes on.",
        "The training continues.",
    ),
]
MAX_WORDS = 40  # of a sentence
MAX_COLUMNS = 140  # of a line in a page
MAX_CELL = 35  # words of a table's cell

Line = tuple[int, str]  # its number, and its text or its fault
Paragraph = list[Line]
Check = Callable[[str], Iterator[Line]]  # from a file's text to its faults

# A comment or a string, whichever begins first.
PYTHON = re.compile(
    r'(?P<comment>\#.*)|(?P<string>[rbfuRBFU]{0,2}(?:"""(?s:\\.|.)*?"""|\'\'\'(?s:\\.|.)*?\'\'\''
    r'|"(?:\\(?s:.)|[^"\\\n])*"|\'(?:\\(?s:.)|[^\'\\\n])*\'))'
)
CPP = re.compile(
    r'(?P<comment>//.*)|(?P<string>R"\((?s:.)*?\)"|"(?:\\(?s:.)|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\')'
)
SHELL = re.compile(r"(?P<comment>(?m:^) *\#.*)|(?P<string>(?!))")
# Begins a paragraph: an item of a list, or of a docstring's `Args:`.
ITEM = re.compile(r"[-*+] |\d+\. |\*{0,2}[\w./`]+(?: \([^)]*\))?: ")


def paragraphs(lines: Iterable[Line]) -> Iterator[Paragraph]:
    """Divides a text at blank lines, list items and headings; drops programs and drawings."""
    paragraph: Paragraph = []
    after_examples = False  # of a command
    for number, line in lines:
        text = line.strip()
        after_examples = after_examples and line.startswith(" ") or text == "examples:"
        is_code = after_examples or re.search(
            r"^(?:>>>|\.\.\.|[|$]|\[[^]]*\] )| {3}|--[->]|=>", text
        )
        if not text or is_code or ITEM.match(text) or text.startswith("#"):
            yield paragraph
            paragraph = []
        if text and not is_code:
            paragraph.append((number, re.sub(r"^(?:[-*+]|\d+\.|#+) ", "", text)))
    yield paragraph


def texts_of_code(source: str, tokens: re.Pattern[str]) -> Iterator[Paragraph]:
    """The paragraphs of the comments and of the strings; neighbours are joined."""
    starts = [0, *(match.end() for match in re.finditer("\n", source))]
    texts: list[list[Line]] = []
    kind, end, was_own = "", 0, False
    for match in tokens.finditer(source):
        number = bisect.bisect(starts, match.start())
        text = match.group()
        between = source[end : match.start()]
        joined = match.lastgroup == kind and re.fullmatch(r"\s*", between)
        if kind == "comment":
            joined = joined and between.count("\n") == 1 and was_own
        if match.lastgroup == "string":
            text = re.sub(r"^[rbfuRBFU]{0,2}(\"\"\"|'''|[\"'])|(\"\"\"|'''|[\"'])$", "", text)
            text = text.replace("\\n", " ").replace("\\", "")
        else:
            text = re.sub(r"^ *(?:#|//+)!? ?", "", text)
        # A comment behind code is a text of its own.
        own = source[starts[number - 1] : match.start()].strip() == ""
        if not joined or (match.lastgroup == "comment" and not own):
            texts.append([])
        texts[-1] += [(number + i, line) for i, line in enumerate(text.split("\n"))]
        kind, end, was_own = match.lastgroup or "", match.end(), own
    for lines in texts:
        if sum(len(line.split()) for _, line in lines) > 2:
            yield from paragraphs(lines)


def texts_of_a_page(source: str) -> Iterator[Paragraph]:
    """The paragraphs and the cells of tables."""
    source = re.sub(
        r"^ *```.*?^ *```", lambda m: "\n" * m[0].count("\n"), source, flags=re.M | re.S
    )
    lines = list(enumerate(source.split("\n"), 1))
    yield from paragraphs(lines)
    for number, line in lines:
        if line.startswith("|"):
            yield from ([(number, cell.strip())] for cell in line.strip(" |").split(" | "))


def faults(paragraph: Paragraph) -> Iterator[Line]:
    """The patterns that a paragraph has, and its long sentences, with the number of the line."""
    starts, text = [], ""
    for _, line in paragraph:
        starts.append(len(text))
        text += line + " "
    # Inline code and the name of an argument are no prose.
    text = re.sub(r"`[^`]*`|^\w+(?=:)", lambda code: "x" * len(code[0]), text)

    def line_at(offset: int) -> int:
        return paragraph[bisect.bisect(starts, offset) - 1][0]

    for pattern in PATTERNS:
        for match in re.finditer(pattern.regex, text):
            yield line_at(match.start()), f'"{match[0]}": better {pattern.better}'
    for sentence in re.finditer(r"\S.*?(?:[.!?;](?= )|$)", text):
        words = sum(any(map(str.isalnum, word)) for word in sentence[0].split())
        if words > MAX_WORDS and re.search(r" (?:the|an?) ", sentence[0]):  # no program
            yield line_at(sentence.start()), f"a sentence of {words} words: better two sentences"


def faults_of_columns(source: str) -> Iterator[Line]:
    """The long lines and the long cells of a page."""
    is_code = False
    for number, line in enumerate(source.split("\n"), 1):
        is_code ^= line.lstrip().startswith("```")
        if is_code:
            continue
        if line.startswith("|"):
            words = max(len(cell.split()) for cell in line.split(" | "))
            if words > MAX_CELL:
                yield number, f"a cell of {words} words: better under 20"
        elif len(line) > MAX_COLUMNS and "](" not in line and "<" not in line:
            yield number, f"a line of {len(line)} columns: better under 120"


def files(*patterns: str) -> list[Path]:
    """The files of the repository; the symlinks in tfdist/ show two folders again."""
    paths = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(
        path
        for path in paths
        if path.is_file()
        and path.resolve() == path != Path(__file__)
        and not {"__pycache__", "build"}.intersection(path.relative_to(ROOT).parts)
    )


def faults_of_code(tokens: re.Pattern[str]) -> Check:
    return lambda source: (
        fault for paragraph in texts_of_code(source, tokens) for fault in faults(paragraph)
    )


def faults_of_a_page(source: str) -> Iterator[Line]:
    yield from (fault for paragraph in texts_of_a_page(source) for fault in faults(paragraph))
    yield from faults_of_columns(source)


FOLDERS = ("benchmarks", "docs", "*_examples", "ops", "strategies", "tests", "tfdist")
PYTHON_FILES = files("*.py", *(f"{folder}/**/*.py" for folder in FOLDERS))
SCRIPTS = files("scripts/*", ".ci/*", "Makefile", "ops/Makefile")
PAGE_OF_DASHBOARD = files("tfdist/observe/live/page/*.js")
CPP_FOLDERS = ("ops", "tests/core", "tests/fuzz")
CPP_FILES = files(*(f"{folder}/**/*.{end}" for folder in CPP_FOLDERS for end in ("h", "cc")))
PAGES = files("README.md", "CONTRIBUTING.md", "*/README.md", "docs/**/*.md")

AREAS: dict[str, list[tuple[list[Path], Check]]] = {
    "python": [
        (PYTHON_FILES, faults_of_code(PYTHON)),
        (SCRIPTS, faults_of_code(SHELL)),
        (PAGE_OF_DASHBOARD, faults_of_code(CPP)),
    ],
    "cpp": [(CPP_FILES, faults_of_code(CPP))],
    "docs": [(PAGES, faults_of_a_page)],
}


@pytest.mark.parametrize("area", AREAS)
def test_prose(area: str) -> None:
    report = [
        f"{path.relative_to(ROOT)}:{number}: {fault}"
        for paths, check in AREAS[area]
        for path in paths
        for number, fault in check(path.read_text())
    ]
    assert not report, f"{len(report)} of {area}:\n" + "\n".join(report)


def faults_of(text: str) -> list[str]:
    return [fault for paragraph in texts_of_a_page(text) for _, fault in faults(paragraph)]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.better)
def test_each_pattern_catches_its_example(pattern: Pattern) -> None:
    assert any(fault.endswith(f"better {pattern.better}") for fault in faults_of(pattern.bad))
    assert faults_of(pattern.good) == []


def test_lines_of_faults() -> None:
    long = "A sentence with the" + " word" * (MAX_WORDS - 3)
    code = f'''"""Nobody.

    Nobody waits
    but for them.
    """
x = 1  # one
call("All have "
     "them alike")
# {long}.
# A text that goes
# on.
'''
    lines = [number for number, _ in faults_of_code(PYTHON)(code)]
    assert sorted(lines) == [1, 3, 4, 8, 9, 10]
    assert [number for number, _ in faults_of_code(CPP)("int x;  // as of that\n")] == [1]


def test_columns_and_cells_of_pages() -> None:
    cell = "| one | " + " ".join(["word"] * (MAX_CELL + 1)) + " |"
    line = "x" * (MAX_COLUMNS + 1)
    page = f"```\n{line}\n```\n{cell}\n{line}\n[{line}](page.md)\n"
    assert [number for number, _ in faults_of_columns(page)] == [4, 5]


def test_programs_names_and_drawings_are_no_prose() -> None:
    assert not faults_of("`nobody`\n```\nNobody waits.\n```\n")
    assert not faults_of("rank 0   nobody   rank 1\n")
