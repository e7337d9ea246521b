"""Padding of convolutions: zeros, or the image's own values.

Zero padding looks like nothing that an image can contain: encoded colours `[x, 1 - x]` are never zero. A deep network
can learn to tell the border by it, and maps then give the border more than it is worth (`sic evaluate --only frame`).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from sic.settings import Padding


class SamePad(nn.Module):
    """Padding such that a convolution's output has 1/stride of the size, as TensorFlow pads; by default with zeros."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.mode: Padding = "zeros"
        self.windows = list(zip(convolution.kernel_size, convolution.stride, convolution.dilation, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        pads: list[int] = []
        for size, (kernel, stride, dilation) in reversed(list(zip(x.shape[2:], self.windows, strict=True))):
            total = max(0, (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size)
            pads += [total // 2, total - total // 2]
        return F.pad(x, pads) if self.mode == "zeros" else F.pad(x, pads, mode=self.mode)


def pad_with(network: nn.Module, mode: Padding) -> None:
    """Change the padding of every convolution and average pooling of a network, in place.

    Args:
        network: Any network; layers without padding stay as they are.
        mode: "zeros", "reflect" or "replicate". Average pooling has no such modes: unless "zeros", the mean is that
            of the pixels inside.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.padding_mode = mode
        elif isinstance(module, SamePad):
            module.mode = mode
        elif isinstance(module, nn.AvgPool2d):
            module.count_include_pad = mode == "zeros"
