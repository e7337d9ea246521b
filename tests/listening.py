"""A reporter that keeps what it is told."""

from sic.training import Silent


class Listening(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def warn(self, sentence: str) -> None:
        self.warned.append(sentence)
