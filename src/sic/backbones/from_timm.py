"""Any architecture of timm, by its name there."""

from typing import Any

import torch
from torch import Tensor

from sic.backbones.registry import Body
from sic.errors import SicError


def _timm(name: str) -> Any:
    """The package, once it is known to have that model."""
    try:
        import timm
    except ImportError:
        raise SicError(f"timm/{name} needs timm; install it with: pip install 'sic[timm]'.") from None
    if not timm.is_model(name):
        similar = timm.list_models(f"*{name.split('_')[0]}*")[:5]
        hint = f"; similar names: {', '.join(similar)}" if similar else ""
        raise SicError(f"timm has no model called {name!r}{hint}.")
    return timm


def timm_body(name: str) -> Body:
    """timm's network with its own pooling and without its classifier."""
    network = _timm(name).create_model(name, num_classes=0)
    settings = network.pretrained_cfg
    example = torch.rand(2, *settings["input_size"], generator=torch.Generator().manual_seed(0))
    features = getattr(network, "head_hidden_size", network.num_features)  # some have a hidden layer after pooling
    return Body(network, features, settings["mean"], settings["std"], example)


def timm_state(name: str) -> dict[str, Tensor]:
    """The weights that timm publishes for a model, from timm's own cache or its download."""
    try:
        network = _timm(name).create_model(name, pretrained=True, num_classes=0)
    except SicError:
        raise
    except Exception as error:  # whatever its download may raise
        reason = str(error).strip().split("\n")[0][:120]
        raise SicError(
            f"timm could not get the weights of {name} ({reason}); download them elsewhere and give the file "
            "with --weights FILE."
        ) from None
    return dict(network.state_dict())
