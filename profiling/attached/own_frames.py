"""Functions that stand between a script and torch, and what the script sees of them in a traceback: nothing."""


def leave_out_frame(error: BaseException) -> None:
    """Take the frame of the function that caught the error out of its traceback; a bare `raise` does not add it again."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
