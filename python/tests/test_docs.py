"""The documents: their code runs, in both languages it is the same, and the reference names all there is.

The first section with code is what every further section of a document begins with; each section is run with
a scheduler of its own, against a real server.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import click
import pytest

from conftest import ROOT
from schedulemesh import client, errors, jobserver, local
from schedulemesh.cli.app import app
from schedulemesh.core import RayScheduler
from schedulemesh.core.actors.control.preemption_controller import PreemptionPolicy, TaskState
from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec

sys.path.insert(0, str(ROOT))  # `examples` is imported as from a checkout
DOCS = ROOT / "docs"
REFERENCE = "api/schedule_mesh"
DOCUMENTS = ["preemption_guide", "label_preemption", "automated_preemption_guide", "pg_pool_guide"]
DOCUMENTS += ["submit_job_api", REFERENCE]
LANGUAGES = [".md", ".zh.md"]


@dataclass
class Section:
    """A part of a document, up to the next heading of its level."""

    title: str
    line: int
    blocks: list[tuple[int, str, str]] = field(default_factory=list)  # line, language, code
    text: str = ""

    def code(self, language: str) -> list[tuple[int, str]]:
        return [(line, code) for line, kind, code in self.blocks if kind == language]


def sections(path: Path, level: str = "##") -> list[Section]:
    found = [Section("", 0)]
    block: tuple[int, str, list[str]] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            if block is None:
                block = (number, line[3:].strip(), [])
            else:
                found[-1].blocks.append((block[0], block[1], "\n".join(block[2]) + "\n"))
                block = None
        elif block is not None:
            block[2].append(line)
        elif line.startswith(level + " "):
            found.append(Section(line[len(level) + 1 :].strip(), number))
        found[-1].text += line + "\n"
    assert block is None, f"{path}: a block is not closed"
    return found


def runnable(document: str) -> list[Section]:
    return [section for section in sections(DOCS / f"{document}.md") if section.code("python")]


def cases() -> list[Any]:
    return [
        pytest.param(document, section.title, id=f"{document}: {section.title}")
        for document in DOCUMENTS
        for section in runnable(document)
    ]


@pytest.fixture
def run(
    driver: local.Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """Runs blocks one after the other in variables they share, as one script."""
    names: dict[str, Any] = {"__name__": "document"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCHEDULEMESH_PREEMPTION_LEVEL", "")  # what a block sets is gone afterwards

    def run(document: str, section: Section) -> None:
        for line, code in section.code("python"):
            tree = compile("\n" * line + code, str(DOCS / f"{document}.md"), "exec", ast.PyCF_ONLY_AST)
            exec(compile(tree, str(DOCS / f"{document}.md"), "exec"), names)

    jobserver.reset()
    yield run
    jobserver.reset()
    for value in list(names.values()):
        if isinstance(value, (SimpleScheduler, RayScheduler)):
            value.shutdown()


@pytest.mark.parametrize(("document", "title"), cases())
def test_the_code_runs(run: Callable[..., None], document: str, title: str) -> None:
    first, *rest = runnable(document)
    run(document, first)
    for section in rest:
        if section.title == title:
            run(document, section)


def without_comments(code: str) -> str:
    return ast.dump(ast.parse(code))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_both_languages_have_the_same_code_and_shape(document: str) -> None:
    english, chinese = (sections(DOCS / f"{document}{language}") for language in LANGUAGES)
    assert len(english) == len(chinese)
    for one, other in zip(english, chinese, strict=True):
        assert [kind for _, kind, _ in one.blocks] == [kind for _, kind, _ in other.blocks], one.title
        for (line, kind, code), (other_line, _, other_code) in zip(one.blocks, other.blocks, strict=True):
            if kind == "python":
                code, other_code = without_comments(code), without_comments(other_code)
            assert code == other_code, f"{document}: lines {line} and {other_line}"
        # Tables say the same of the same things: their first cells are names.
        names = re.compile(r"^\| (`[^|`]*`(?:, `[^|`]*`)*) \|", re.M)
        assert names.findall(one.text) == names.findall(other.text), one.title


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_it_points_to_is_there(document: str, language: str) -> None:
    path = DOCS / f"{document}{language}"
    links = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    assert links
    for link in links:
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        other = (path.parent / target).resolve() if target else path
        assert other.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", other.read_text(encoding="utf-8"), re.M)
            anchors = [
                re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
            ]
            assert anchor in anchors, link


@pytest.mark.parametrize("document", DOCUMENTS)
def test_its_commands_exist(document: str) -> None:
    lines = [
        line
        for section in sections(DOCS / f"{document}.md")
        for _, code in section.code("bash")
        for line in code.splitlines()
        if line.startswith("schedulemesh ")
    ]
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        command: click.Command = app
        context = click.Context(app, info_name="schedulemesh")
        while isinstance(command, click.Group):
            context = command.make_context(command.name, words, parent=context.parent, resilient_parsing=True)
            words = [*context._protected_args, *context.args]
            if not words:
                break
            _name, found, words = command.resolve_command(context, words)
            assert found is not None, line
            command = found
        if words and command.name != "up":  # what `up` takes is the server's
            command.make_context(command.name, words, parent=context)


# The reference.


def parts_of_reference(language: str) -> dict[str, Section]:
    """Its sections of the third level, by the name that is their heading."""
    return {
        section.title.strip("`"): section
        for section in sections(DOCS / f"{REFERENCE}{language}", "###")
        if section.title.startswith("`")
    }


def methods(cls: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in inspect.getmembers(cls, callable)
        if not name.startswith("_")
    }


def shown(parameter: inspect.Parameter, language: str) -> str:
    """A default as the reference's tables have it."""
    if parameter.default is inspect.Parameter.empty:
        return "required" if language == ".md" else "必需"
    return "" if parameter.default is None else f"`{parameter.default!r}`"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", sorted(methods(RayScheduler)))
def test_the_reference_has_every_argument_of_a_scheduler(language: str, name: str) -> None:
    part = parts_of_reference(language).get(name)
    assert part is not None, f"there is no section `{name}`"
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) *\|", part.text, re.M))
    for argument in methods(RayScheduler)[name].parameters.values():
        if argument.name == "self" or argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            continue
        assert argument.name in rows, f"{name}: {argument.name}"
        assert rows[argument.name] == shown(argument, language), f"{name}: {argument.name}"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_reference_has_all_of_the_simple_scheduler(language: str) -> None:
    text = parts_of_reference(language)["SimpleScheduler"].text
    rows = dict(re.findall(r"^\| `(\w+)\(([^|]*)\)` \|", text, re.M))
    for name, signature in methods(SimpleScheduler).items():
        named = [
            argument.name
            for argument in signature.parameters.values()
            if argument.name != "self"
            and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        ]
        assert name in rows, name
        assert re.findall(r"\w+", rows[name]) == named, name


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_reference_names_all_else(language: str) -> None:
    text = (DOCS / f"{REFERENCE}{language}").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.]+)(?:\([^`]*)?`", text))
    for options in (PreemptionPolicy, TaskState, SimpleTaskSpec):
        for one in fields(options):
            assert one.name in named, f"{options.__name__}.{one.name}"
    for name in methods(client.Client):
        assert name in named, f"Client.{name}"
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| `(\w+)` \|", text, re.M))
    for code, cls in errors.BY_CODE.items():
        assert rows.get(code) == cls.__name__, code
    own = [cls for cls in errors.ScheduleMeshError.__subclasses__() if cls is not errors.ServerError]
    for own_error in own:
        assert own_error.__name__ in named, own_error.__name__
    from schedulemesh._async.scheduler import _OPTIONS

    assert named >= _OPTIONS, sorted(_OPTIONS - named)
    source = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "python/src/schedulemesh").rglob("*.py")
    )
    variables = set(re.findall(r"SCHEDULEMESH_[A-Z]+(?:_[A-Z]+)*", source))
    theirs = {"SCHEDULEMESH_BRIDGE_TOKEN", "SCHEDULEMESH_COMPLETE", "SCHEDULEMESH_PREEMPTION_LEVEL"}
    assert variables - theirs <= named, sorted(variables - theirs - named)
