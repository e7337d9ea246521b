"""Post-hoc attributions of networks that cannot be traced: Input×Gradient, Integrated Gradients, Grad-CAM.

None of them promises that pixels and constant add up to the logit; the residual says by how much they do not. The
input that attributions refer to is the normalised one, in which zero is the mean colour.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sic.errors import SicError

INPUT_X_GRADIENT, INTEGRATED_GRADIENTS, GRAD_CAM = "input-x-gradient", "integrated-gradients", "grad-cam"
STEPS = 50
"""Of the integral."""

Outputs = Callable[[Tensor], Tensor]
"""Prepared images N×3×H×W, or feature maps, → N×K."""


@contextmanager
def gradients() -> Iterator[None]:
    """Full precision and gradients, whatever the caller had set."""
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cuda", enabled=False),
        torch.autocast("cpu", enabled=False),
    ):
        yield


def input_x_gradient(outputs: Outputs, prepared: Tensor, columns: int) -> Tensor:
    """N×K×H×W."""
    attribution = _captum().InputXGradient(outputs)
    return torch.stack([attribution.attribute(prepared, target=k).sum(dim=1) for k in range(columns)], dim=1).detach()


def integrated_gradients(outputs: Outputs, prepared: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Along the line from the mean colour: N×K×H×W, and the outputs at its start, N×K: a constant."""
    attribution = _captum().IntegratedGradients(outputs)
    maps = [
        attribution.attribute(prepared, target=k, n_steps=STEPS, internal_batch_size=max(len(prepared), 32))
        for k in range(columns)
    ]
    with torch.no_grad():
        start = outputs(torch.zeros_like(prepared))
    return torch.stack([map.sum(dim=1) for map in maps], dim=1).detach().to(prepared), start


def grad_cam(outputs: Outputs, maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Selvaraju et al. 2017: feature maps N×F×h×w weighted by their mean gradients, ReLU, enlarged: N×K×H×W."""
    maps = maps.detach().requires_grad_()
    values = outputs(maps)
    result = []
    for k in range(values.shape[1]):
        gradient = torch.autograd.grad(values[:, k].sum(), maps, retain_graph=True)[0]
        importance = gradient.mean(dim=(2, 3), keepdim=True)
        result.append((importance * maps).sum(dim=1).relu().detach())
    return F.interpolate(torch.stack(result, dim=1), size, mode="bilinear", align_corners=False)


def _captum() -> Any:
    try:
        import captum.attr
    except ImportError:
        raise SicError("Explaining this method needs captum; install it with: pip install 'sic[captum]'.") from None
    return captum.attr
