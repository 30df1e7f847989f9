"""What may be the command of a job: one that does not depend on where it is run.

``jobs/entrypoint.go`` is the server's side; ``jobs/testdata/entrypoints.json`` tests both.
"""

from __future__ import annotations

import json
import re

from schedulemesh.errors import InvalidArgument

#: The longest entrypoint, in bytes of UTF-8.
LIMIT = 64 * 1024

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_PYTHON = re.compile(r"(python|pypy)([0-9]+(\.[0-9]+)*)?t?")
_SHELLS = {"bash", "sh", "dash", "zsh", "ksh"}
#: Programs that run the command behind them: how many words of their own come first, options with a value.
_WRAPPERS: dict[str, tuple[int, tuple[str, ...]]] = {
    "command": (0, ()),
    "env": (0, ("-u", "-C", "--unset", "--chdir")),
    "exec": (0, ("-a",)),
    "nice": (0, ("-n",)),
    "nohup": (0, ()),
    "setsid": (0, ()),
    "stdbuf": (0, ("-i", "-o", "-e")),
    "time": (0, ("-f", "-o")),
    "timeout": (1, ("-k", "-s")),
}


def check_entrypoint(entrypoint: str) -> None:
    """Refuse a command whose program, or the script of its Python or shell, is a relative path.

    Only the first command of several is looked at. A bare name is looked up on the cluster's PATH, and what
    arguments mean is the program's business.

    Raises:
        InvalidArgument: it is refused, or is no command at all.
    """
    if not isinstance(entrypoint, str):
        raise InvalidArgument(f"entrypoint must be a string, not {type(entrypoint).__name__}")
    try:
        size = len(entrypoint.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("the entrypoint is not text in UTF-8") from None
    if size > LIMIT:
        raise InvalidArgument(
            f"the entrypoint has {size} bytes, and {LIMIT} is the most: put it into a script, and name that"
        )
    if "\0" in entrypoint:
        raise InvalidArgument("the entrypoint has a NUL character in it, which no command can have")
    if not entrypoint.strip():
        raise InvalidArgument(
            'the entrypoint is empty: give the command to run, such as "python /home/user/train.py"'
        )
    _check(_first_command(entrypoint))


def _check(words: list[str]) -> None:
    while True:  # a program may only run another one
        while words and (words[0] in ("!", "{") or _ASSIGNMENT.match(words[0])):
            words = words[1:]
        if not words or not words[0]:
            raise InvalidArgument(
                'the entrypoint names no program to run; one looks like "python /home/user/train.py"'
            )
        program, words = words[0], words[1:]
        if "/" in program and not _absolute(program):
            raise _relative("program", program, ", or a bare name that is on the PATH there")
        name = program.rpartition("/")[2]
        if name not in _WRAPPERS:
            break
        own, values = _WRAPPERS[name]
        while words and words[0].startswith("-"):
            words = words[2:] if words[0] in values else words[1:]
        words = words[own:]
        if not words:
            return
    script = ""
    if _PYTHON.fullmatch(name):
        script = _script(words, "cm", "WX", ("--check-hash-based-pycs",))
    elif name in _SHELLS:
        script = _script(words, "cs", "oO", ("--rcfile", "--init-file"))
    elif name in (".", "source"):
        script = words[0] if words else ""
    if script and not _absolute(script):
        raise _relative("script", script, "")


def _relative(what: str, path: str, more: str) -> InvalidArgument:
    shown = path if len(path) <= 200 else path[:200] + "…"
    return InvalidArgument(
        f"the {what} {json.dumps(shown, ensure_ascii=False)} of the entrypoint is a relative path, and no "
        f"cluster knows what it is relative to: give its absolute path{more}"
    )


def _absolute(path: str) -> bool:
    # The shell there makes an absolute path of one that begins with the home directory or a variable.
    return path[0] in "/~$`"


def _script(words: list[str], ends: str, takes: str, long: tuple[str, ...]) -> str:
    """The script among what stands behind an interpreter; empty when there is none.

    Args:
        words: what stands there.
        ends: letters of options with which there is no script.
        takes: letters of options with a value, which may be in the same word or be the next one.
        long: long options whose value is the next word.
    """
    while words:
        word, words = words[0], words[1:]
        if word in ("-", "--"):
            return words[0] if words and word == "--" else ""
        if word.startswith("--"):
            words = words[1:] if word in long else words
        elif word[:1] in ("-", "+"):
            for at, letter in enumerate(word[1:], 2):
                if letter in ends:
                    return ""
                if letter in takes:
                    words = words[1:] if at == len(word) else words
                    break
        else:
            return word
    return ""


def _first_command(text: str) -> list[str]:
    """The words of the first command, split as a POSIX shell does; redirections are left out.

    Raises:
        InvalidArgument: a quote, wherever it is, is never closed.
    """
    words: list[str] = []
    word: str | None = None  # None: between words
    skip = False  # the next word is a redirection's
    done = False  # the first command is over; quotes are still looked at
    here_document = False
    at = 0

    def end_word() -> None:
        nonlocal word, skip
        if word is not None and not skip and not done:
            words.append(word)
        if word is not None:
            skip = False
        word = None

    while at < len(text):
        c = text[at]
        at += 1
        if c == "\\":
            if text[at : at + 1] != "\n":
                word = (word or "") + (text[at : at + 1] or c)
            at += 1
        elif c in "'\"":
            word = word or ""
            while True:
                if at >= len(text):
                    raise InvalidArgument(f"the entrypoint has a quote ({c}) that is never closed")
                d = text[at]
                at += 1
                if d == c:
                    break
                if c == '"' and d == "\\" and text[at : at + 1] in ("\\", '"', "$", "`", "\n"):
                    d = "" if text[at] == "\n" else text[at]
                    at += 1
                word += d
        elif c in " \t\r":
            end_word()
        elif c == "#" and word is None:
            end = text.find("\n", at)
            at = end if end >= 0 else len(text)
        elif c in "<>" or (c == "&" and text[at : at + 1] == ">"):
            if word is not None and not re.fullmatch("[0-9]+", word):  # not which one is redirected
                end_word()
            word, begin = None, at
            while text[at : at + 1] in ("<", ">", "&", "|"):
                at += 1
            here_document = here_document or (c == "<" and text[begin:at] == "<")
            skip = True
        elif c in ";&|()\n":
            end_word()
            if c == "\n" and here_document:
                break  # what follows is data
            done = done or bool(words)
            skip = False
        else:
            word = (word or "") + c
    end_word()
    return words
