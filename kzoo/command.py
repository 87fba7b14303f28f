"""How every `python -m kzoo.NAME` starts, fails and ends.

A command module holds a `flags.FlagValues` of its own, so that two commands can be imported into
one process, and ends in

    if __name__ == "__main__":
        sys.exit(command.run(main, FLAGS, __doc__))
"""

import os
import sys
import textwrap
from collections.abc import Callable, Sequence

from absl import flags

from kzoo.errors import KzooError

USAGE_ERROR = 2
INTERRUPTED = 130
NO_READER = 141  # what a shell makes of SIGPIPE


def run(
    main: Callable[[], None],
    flag_values: flags.FlagValues,
    usage: str,
    arguments: Sequence[str] | None = None,
) -> int:
    """Parses the flags, calls `main`, and turns what happened into an exit status.

    Args:
        main: the command; it reads its flags and takes no arguments.
        flag_values: where the command has defined its flags.
        usage: what `--help` prints before the flags.
        arguments: the command line without the program's name; default `sys.argv[1:]`.

    Returns:
        0 on success and for `--help`; 2 for a wrong flag or a `KzooError`, which is printed as
        `error: …` on stderr; 130 after Ctrl-C; 141 if nobody reads the output any more.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status = _status_of(main, flag_values, usage, arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone (`… | head`): nothing is left to say, at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    return status


def _status_of(
    main: Callable[[], None],
    flag_values: flags.FlagValues,
    usage: str,
    arguments: Sequence[str],
) -> int:
    if {"--help", "-help", "-h"} & set(arguments):
        print(f"{usage.strip()}\n\n{_flag_table(flag_values)}")
        return 0
    try:
        rest = flag_values(["kzoo", *arguments])[1:]
        if rest:
            raise flags.Error(f"unexpected argument {rest[0]!r}; see --help")
        main()
    except (flags.Error, KzooError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _flag_table(flag_values: flags.FlagValues) -> str:
    """Every flag with its default and its help, in the order of their definition."""
    lines = ["Flags:"]
    for name in _names(flag_values):
        flag = flag_values[name]
        default = "" if flag.default in (None, []) else f" (default: {flag.default_as_str})"
        lines.append(f"  --{name}{default}")
        lines.extend(
            textwrap.wrap(flag.help or "", 88, initial_indent=" " * 8, subsequent_indent=" " * 8)
        )
    return "\n".join(lines)


def _names(flag_values: flags.FlagValues) -> list[str]:
    return [flag.name for found in flag_values.flags_by_module_dict().values() for flag in found]
