"""The ``schedulemesh`` command: the REST API for people and for shell scripts.

It says what the server says. Nothing is decided here, and Ray is never imported.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

#: Exit codes: something was refused or failed, the command line was wrong, interrupted with Ctrl-C.
FAILED, USAGE, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, ``sys.argv`` by default; returns the exit code. Prints one sentence, and never
    a traceback, when something goes wrong."""
    import click

    from schedulemesh.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what the terminal cannot show becomes a question mark
    try:
        code = app.main(argv, prog_name="schedulemesh", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        error.show()
        return USAGE
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        return _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has enough. What is left in the buffer would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if os.environ.get("SCHEDULEMESH_DEBUG"):
            raise
        return _fail(_sentence(error))


def _sentence(error: Exception) -> str:
    from schedulemesh.errors import ScheduleMeshError, Unauthorized
    from schedulemesh.local import LocalError

    match error:
        case Unauthorized():
            return f"{error}; give --token-file, or set SCHEDULEMESH_TOKEN or SCHEDULEMESH_TOKEN_FILE"
        case ScheduleMeshError() | LocalError() | OSError():
            return " ".join(str(error).split())
        case UnicodeEncodeError():
            return f"{error.object!r} is not text in UTF-8"
    return f"a defect of this command ({type(error).__name__}: {error}); SCHEDULEMESH_DEBUG=1 shows where"


def _fail(sentence: str) -> int:
    print(f"schedulemesh: {sentence}", file=sys.stderr)
    return FAILED
