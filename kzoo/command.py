"""How every `python -m kzoo.NAME` starts, fails and ends.

A command module holds a `flags.FlagValues` of its own, so that two commands can be imported into
one process, and ends in

    if __name__ == "__main__":
        sys.exit(command.run(main, FLAGS, __doc__))
"""

import errno
import io
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence

from absl import flags

from kzoo.errors import KzooError

USAGE_ERROR = 2
INTERRUPTED = 130
NO_READER = 141  # what a shell makes of SIGPIPE


def run(
    main: Callable[..., int | None],
    flag_values: flags.FlagValues,
    usage: str,
    arguments: Sequence[str] | None = None,
    *,
    passed_on_with: str | None = None,
) -> int:
    """Parses the flags, calls `main`, and turns what happened into an exit status.

    Args:
        main: the command; it reads its flags and takes no arguments. It may return an exit
            status, such as that of a program that it has run.
        flag_values: where the command has defined its flags.
        usage: what `--help` prints before the flags.
        arguments: the command line without the program's name; default `sys.argv[1:]`.
        passed_on_with: a flag that says who takes the arguments that are no flags of the command:
            `main` is called with a list of them, which is empty where this flag is not given (the
            others are then wrong, as usual).

    Returns:
        0 on success and for `--help`, or what `main` returned; 2 for a wrong flag, a `KzooError` or
        output that cannot be written, which is printed as `error: …` on stderr; 130 after Ctrl-C;
        141 if nobody reads the output any more.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    _make_streams_usable()
    try:
        status = _status_of(main, flag_values, usage, arguments, passed_on_with)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone (`… | head`): nothing is left to say, at exit either.
        _drop_output()
        return NO_READER
    except OSError as error:
        # What a stream could not write; whoever writes a file names it.
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        _drop_output()
        _complain(f"error: cannot write the output: {error.strerror}")
        return USAGE_ERROR
    return status


def define_cache_dir(flag_values: flags.FlagValues) -> None:
    """Defines the flag that says where copies of remote files are kept."""
    flags.DEFINE_string(
        "cache_dir",
        None,
        "Local folder for copies of what is on object storage (gs://…), and for what goes there;"
        " default: kzoo in the user's cache folder.",
        flag_values=flag_values,
    )


def _make_streams_usable() -> None:
    """Lets no closed stream, and no character that a terminal cannot show, end a command.

    Closed descriptors (`>&-`) are opened on nothing, before a file of ours gets their number.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number, which is this one; for the processes that we start, too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BytesIO())
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, io.StringIO())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Lets what is still buffered be written to nowhere when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(text: str) -> None:
    """Prints to stderr; if even that is full, the exit status alone has to tell."""
    try:
        print(text, file=sys.stderr)
    except BrokenPipeError:
        raise
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _status_of(
    main: Callable[..., int | None],
    flag_values: flags.FlagValues,
    usage: str,
    arguments: Sequence[str],
    passed_on_with: str | None,
) -> int:
    if {"--help", "-help", "-h"} & set(arguments):
        print(f"{usage.strip()}\n\n{_flag_table(flag_values)}")
        return 0
    try:
        if passed_on_with is None:
            _refuse(parse(flag_values, arguments))
            return main() or 0
        return main(_passed_on(flag_values, arguments, passed_on_with)) or 0
    except (flags.Error, KzooError) as error:
        _complain(f"error: {error}")
        return USAGE_ERROR
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED


def _refuse(rest: Sequence[str]) -> None:
    if rest:
        raise flags.Error(f"unexpected argument {rest[0]!r}; see --help")


def _passed_on(
    flag_values: flags.FlagValues, arguments: Sequence[str], passed_on_with: str
) -> list[str]:
    """Sets the flags, and returns the arguments that are none of them if a flag is there."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    ours, behind = arguments[:end], arguments[end:]
    if not any(re.fullmatch(rf"--?{passed_on_with}(=.*)?", argument) for argument in ours):
        _refuse(parse(flag_values, arguments))
        return []
    # Else a value that stands by itself, as in `--project mine`, would end the flags.
    flag_values.set_gnu_getopt()
    return [*parse(flag_values, ours, known_only=True), *behind]


def parse(
    flag_values: flags.FlagValues, arguments: Sequence[str], known_only: bool = False
) -> list[str]:
    """Sets the flags, and returns what is left of the command line.

    Args:
        flag_values: the flags.
        arguments: the command line without the program's name.
        known_only: whether unknown flags are left, instead of being wrong.

    Raises:
        flags.Error: a flag is unknown, or has a wrong value or none.
    """
    try:
        return flag_values(["kzoo", *arguments], known_only=known_only)[1:]
    except ValueError as error:  # Of `--nooverwrite=1`; absl's other complaints are `flags.Error`.
        raise flags.Error(str(error)) from error


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
