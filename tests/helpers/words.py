"""The words of a command line."""


def words(line: str) -> tuple[str, ...]:
    return tuple(line.split())
