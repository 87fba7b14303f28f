"""The one exception that a user is meant to see."""


class KzooError(Exception):
    """A mistake that the user can mend.

    The message is complete in itself: what is wrong, where (file, line, key or tensor), what was
    received, and what to do. Commands print it as `error: …` on stderr and exit with status 2.
    """
