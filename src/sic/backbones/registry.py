"""Named feature extractors: `@register` puts a builder under its own name, `create` calls it."""

from collections.abc import Callable

from torch import Tensor, nn

from sic.errors import SicError


class Backbone(nn.Module):
    """Encoded images N×6×H×W → globally pooled features N×`features`."""

    features: int

    def forward(self, encoded: Tensor) -> Tensor:
        raise NotImplementedError


Builder = Callable[..., Backbone]
_builders: dict[str, Builder] = {}


def register(builder: Builder) -> Builder:
    _builders[builder.__name__] = builder
    return builder


def names() -> list[str]:
    return sorted(_builders)


def require(name: str) -> None:
    """Refuse a name that nobody registered."""
    if name not in _builders:
        raise SicError(f"There is no backbone called {name!r}; choose one of {', '.join(names())}.")


def create(name: str, b: float = 2) -> Backbone:
    """A freshly initialised B-cos backbone."""
    require(name)
    return _builders[name](b=b)
