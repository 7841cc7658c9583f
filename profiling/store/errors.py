"""The error that stands for a user's mistake: one line, exit status 2."""


class DpscopeError(Exception):
    """A mistake of the user's or of a file's, told in one line: what, where, what to do."""
