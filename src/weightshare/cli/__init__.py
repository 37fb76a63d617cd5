"""The command line: ``weightshare --help``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; what the user can mend is told in a line, not in a traceback."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as missing:
        sys.exit(
            f"weightshare: the command line needs {missing.name}; pip install 'weightshare[experiments]'"
        )
    from weightshare.cli.app import app

    try:
        app()
    except KeyboardInterrupt:
        print("weightshare: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (ValueError, OSError) as error:
        if os.environ.get("WEIGHTSHARE_TRACEBACK"):
            raise
        print(f"weightshare: {error}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as missing:
        print(
            f"weightshare: {missing.name} is not installed; pip install 'weightshare[experiments]'",
            file=sys.stderr,
        )
        sys.exit(1)
