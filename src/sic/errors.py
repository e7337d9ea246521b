"""The one exception that users meet: a sentence that names the file or the flag, and the way out."""


class SicError(Exception):
    """Something the user can put right; the command line prints it as one sentence and exits with 1."""
