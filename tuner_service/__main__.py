"""``tilecore``: loads the command line, and runs it."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line.

    While modules are loaded Ctrl-C ends the process at once, without a traceback.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tuner_service.cli import app as cli

    signal.signal(signal.SIGINT, usual)
    cli.main()


if __name__ == "__main__":
    main()
